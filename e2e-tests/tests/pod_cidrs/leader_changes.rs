//! Another process becomes the leader that assigns blocks.

use serde_json::json;

use super::support::{MISPLACED, WAITING, measures, one};
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy, Seen};
use crate::support::pod_cidr_cluster::{Nodes, twice};

#[tokio::test]
async fn next_leader_finishes_the_work_of_a_killed_leader() {
    const NODES: usize = 300;
    let nodes = Nodes::alone().await;
    let mut first = nodes.serve(&one(&["10.64.0.0/15"])).await;
    let second = nodes.server_at(nodes.plane.server(), &one(&["10.64.0.0/15"])).start().await;
    second.logged("another process leads").await;
    nodes.create("by-hand", json!({}), &["10.64.3.0/24"]).await;
    // Some Nodes have blocks, some requests are in flight, and some Nodes come later.
    let created = nodes.create_all((0..NODES).map(|index| format!("n{index:03}")));
    let killed = async {
        eventually("some to have blocks", async || {
            let given = nodes.all().await.values().filter(|blocks| !blocks.is_empty()).count();
            (given > NODES / 4).then_some(())
        })
        .await;
        first.kill();
    };
    tokio::join!(created, killed);
    // The killed leader can't write any more.
    let before = nodes.all().await;
    assert!(before.values().any(Vec::is_empty), "it was killed too late");
    measures(&second, &[WAITING, MISPLACED], &[]).await;
    let after = nodes.all_given().await;
    assert_eq!((after.len(), twice(&after)), (NODES + 1, vec![]));
    for (name, blocks) in before.iter().filter(|(_, blocks)| !blocks.is_empty()) {
        assert_eq!(&after[name], blocks, "{name}");
    }
    measures(&second, &[WAITING, "clusterip_leader"], &["clusterip_leader 1"]).await;
}

/// A leader that can't renew its Lease stops writing before another leads, and reports no Nodes any more.
#[tokio::test]
async fn leader_without_its_lease_writes_no_nodes() {
    let nodes = Nodes::alone().await;
    let proxy = Proxy::start(&nodes.plane).await;
    let pools = one(&["10.42.0.0/23"]);
    let first = nodes.serve_through(&proxy, &pools).await;
    for name in ["a", "b", "waits"] {
        nodes.create(name, json!({}), if name == "b" { &["10.42.1.0/24"] } else { &[] }).await;
    }
    nodes.create("outside", json!({}), &["10.99.0.0/24"]).await;
    nodes.wait_for_event("waits", "CIDRNotAvailable").await;
    measures(
        &first,
        &[WAITING, MISPLACED],
        &[r#"clusterip_misplaced_nodes{reason="outside"} 1"#, "clusterip_nodes_waiting 1"],
    )
    .await;
    let second = nodes.server_at(nodes.plane.server(), &pools).start().await;
    second.logged("another process leads").await;
    let lease = |seen: &Seen| seen.is_write() && seen.path.ends_with("/leases/clusterip-leader");
    let renewals = proxy.on_nth(0, 1000, lease, Fault::PauseBefore);
    first.logged("could not be renewed in time: this process stops leading").await;
    let before = proxy.writes().iter().filter(|seen| seen.path.starts_with("/api/v1/nodes")).count();
    measures(&first, &[WAITING, MISPLACED], &[]).await;
    nodes.delete("b").await;
    second.logged("leading: Nodes without pod CIDRs get blocks").await;
    assert_eq!(nodes.given("waits").await, ["10.42.1.0/24"]);
    measures(&second, &[WAITING, MISPLACED], &[r#"clusterip_misplaced_nodes{reason="outside"} 1"#]).await;
    let after = proxy.writes().iter().filter(|seen| seen.path.starts_with("/api/v1/nodes")).count();
    assert_eq!(before, after, "the first has written a Node");
    measures(&first, &[WAITING, MISPLACED], &[]).await;
    renewals.discard();
}
