//! Which Nodes get which blocks, and which Nodes wait or are left alone.

use serde_json::{Value, json};

use super::support::{ASSIGNED, BLOCKS, WAITING, measures, one};
use crate::support::fault_proxy::Proxy;
use crate::support::pod_cidr_cluster::{Nodes, settings};

#[tokio::test]
async fn freed_block_goes_to_the_node_that_waits_longest() {
    let nodes = Nodes::alone().await;
    let server = nodes.serve(&one(&["10.42.0.0/23"])).await;
    for name in ["a", "b"] {
        nodes.create(name, json!({}), &[]).await;
        nodes.given(name).await;
    }
    for name in ["z", "y", "x"] {
        nodes.create(name, json!({}), &[]).await;
        nodes.wait_for_event(name, "CIDRNotAvailable").await;
    }
    let waiting = [
        r#"clusterip_node_assignments_total{result="assigned"} 2"#,
        r#"clusterip_node_assignments_total{result="full"} 3"#,
        "clusterip_nodes_waiting 3",
    ];
    measures(&server, &[ASSIGNED, WAITING], &waiting).await;
    let blocks = [
        r#"clusterip_node_pool_blocks{pool="all",family="IPv4",state="usable"} 2.0"#,
        r#"clusterip_node_pool_blocks{pool="all",family="IPv4",state="used"} 2.0"#,
    ];
    measures(&server, &[BLOCKS], &blocks).await;
    nodes.delete("b").await;
    assert_eq!(nodes.given("z").await, ["10.42.1.0/24"]);
    nodes.delete("a").await;
    assert_eq!(nodes.given("y").await, ["10.42.0.0/24"]);
    measures(&server, &[WAITING], &["clusterip_nodes_waiting 1"]).await;
    let full = "CIDRNotAvailable: Node x: pool \"all\" (10.42.0.0/23) is full: no block of /24 is free; chosen by default; \
                add a range to the pool, or delete Nodes that no longer exist";
    assert_eq!(nodes.events("x").await, [full]);

    // The pool gets another range, and all blocks stay.
    std::fs::write(server.folder().join("settings.yaml"), settings(&one(&["10.42.0.0/23", "10.43.0.0/24"]))).unwrap();
    assert_eq!(nodes.given("x").await, ["10.43.0.0/24"]);
    let all = nodes.all().await;
    assert_eq!((all["y"][0].as_str(), all["z"][0].as_str()), ("10.42.0.0/24", "10.42.1.0/24"));
    measures(&server, &[WAITING], &[]).await;
}

#[tokio::test]
async fn nodes_are_ignored_until_the_settings_have_node_pools() {
    let nodes = Nodes::alone().await;
    let proxy = Proxy::start(&nodes.plane).await;
    let server = nodes.server_at(proxy.url(), &Value::Null).start().await;
    server.logged("leading: misplaced Services are moved").await;
    nodes.create("early", json!({}), &[]).await;
    measures(&server, &["clusterip_leader", BLOCKS], &["clusterip_leader 1"]).await;
    std::fs::write(server.folder().join("settings.yaml"), settings(&one(&["10.42.0.0/24"]))).unwrap();
    assert_eq!(nodes.given("early").await, ["10.42.0.0/24"]);
    let nodes_written = || proxy.writes().iter().filter(|seen| seen.path.starts_with("/api/v1/nodes")).count();
    assert_eq!(nodes_written(), 1);
    // The settings have no pools of Nodes any more.
    nodes.create("waits", json!({}), &[]).await;
    nodes.wait_for_event("waits", "CIDRNotAvailable").await;
    measures(&server, &[WAITING], &["clusterip_nodes_waiting 1"]).await;
    std::fs::write(server.folder().join("settings.yaml"), settings(&Value::Null)).unwrap();
    measures(&server, &[WAITING, BLOCKS], &[]).await;
    nodes.delete("early").await;
    nodes.create("late", json!({}), &[]).await;
    std::fs::write(server.folder().join("settings.yaml"), settings(&one(&["10.42.0.0/23"]))).unwrap();
    // The order is that of the names, as a list returns the Nodes.
    assert_eq!(
        (nodes.given("late").await, nodes.given("waits").await),
        (vec!["10.42.0.0/24".to_owned()], vec!["10.42.1.0/24".to_owned()])
    );
}
