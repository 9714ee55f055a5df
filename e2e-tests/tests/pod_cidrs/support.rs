//! Pools of Nodes, the requests that assign blocks, and the metrics about Nodes.

use serde_json::{Value, json};

use crate::support::cluster::metrics;
use crate::support::fault_proxy::Seen;
use crate::support::pod_cidr_cluster::{path, pool};
use crate::support::serve_process::Server;

/// One pool for all, of these ranges.
pub fn one(cidrs: &[&str]) -> Value {
    json!({"pools": [pool("all", cidrs, &json!({}))]})
}

/// Whether a request gives blocks to this Node.
pub fn gives(name: &str) -> impl Fn(&Seen) -> bool + Send + Sync + 'static {
    let path = path(name);
    move |seen| seen.is_write() && seen.path == path && seen.body["spec"]["podCIDR"].is_string()
}

/// Waits until the metrics with this prefix, except those that are 0, are these.
pub async fn measures(server: &Server, names: &[&str], expected: &[&str]) {
    let mut last = Vec::new();
    let waited = tokio::time::timeout(crate::support::eventually::MAX_WAIT, async {
        loop {
            last.clear();
            for name in names {
                last.extend(metrics(server, name).await.into_iter().filter(|line| !line.ends_with(" 0.0")));
            }
            last.sort();
            if last == expected {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let ended = waited.await;
    assert!(ended.is_ok(), "{last:#?} instead of {expected:#?}");
}

pub const ASSIGNED: &str = "clusterip_node_assignments_total";
pub const WAITING: &str = "clusterip_nodes_waiting";
pub const BLOCKS: &str = "clusterip_node_pool_blocks";
pub const MISPLACED: &str = "clusterip_misplaced_nodes";
