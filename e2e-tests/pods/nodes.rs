//! `deploy/nodes`: its webhook checks the pod CIDRs of Nodes.
//!
//! The controller manager of this cluster gives every Node its pod CIDR, so `clusterip` gives none here:
//! `e2e-tests/tests/pod_cidrs` tests that.

use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{install, uninstall};
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::json;

/// The warnings that a client gets when it creates a Node with this block.
async fn warnings(cluster: &WholeCluster, block: &str) -> String {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "trial", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"podCIDR": block, "podCIDRs": [block]},
    });
    let created = cluster.kubectl_with(&["create", "--dry-run=server", "-f", "-"], &node.to_string()).await;
    assert_eq!(created.status, 0, "{}", created.stderr);
    created.stderr
}

pub async fn pod_cidrs_are_checked(cluster: &WholeCluster) {
    install(cluster, "nodes").await;
    let ready = ["wait", "--for=condition=Ready", "nodeblockpool", "--all", "--timeout=60s"];
    cluster.kubectl(&ready).await.ok();
    // `explicit: Warn` accepts the block of another pool.
    let warned = eventually("a warning", async || {
        Some(warnings(cluster, "172.20.128.0/24").await).filter(|warnings| !warnings.is_empty())
    })
    .await;
    assert!(warned.starts_with("Warning: ") && warned.contains("windows"), "{warned}");
    assert_eq!(warnings(cluster, "172.20.5.0/24").await, "");
    uninstall(cluster).await;
}
