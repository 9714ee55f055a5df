//! Which Nodes get which blocks, and which Nodes wait or are left alone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::support::{ASSIGNED, BLOCKS, MISPLACED, WAITING, by_os, measures, one, os};
use crate::support::fault_proxy::Proxy;
use crate::support::pod_cidr_cluster::{Nodes, pool, settings};

#[tokio::test]
async fn each_operating_system_has_its_own_pool() {
    let nodes = Nodes::alone().await;
    let server = nodes.serve(&by_os()).await;
    for (name, labels) in
        [("l1", os("linux")), ("w1", os("windows")), ("bare", json!({})), ("w2", os("Windows")), ("l2", os("linux"))]
    {
        nodes.create(name, labels, &[]).await;
        if name != "bare" {
            nodes.given(name).await;
        }
    }
    let texts = |blocks: &[&str]| blocks.iter().map(|block| (*block).to_owned()).collect::<Vec<_>>();
    let mut expected: BTreeMap<String, Vec<String>> = [
        ("bare", texts(&[])),
        ("l1", texts(&["10.42.0.0/24"])),
        ("l2", texts(&["10.42.1.0/24"])),
        ("w1", texts(&["10.42.8.0/24"])),
        ("w2", texts(&["10.42.9.0/24"])),
    ]
    .map(|(name, blocks)| (name.to_owned(), blocks))
    .into();
    assert_eq!(nodes.all().await, expected);
    let blocks = [
        r#"clusterip_node_assignments_total{result="assigned"} 4"#,
        r#"clusterip_node_assignments_total{result="no_pool"} 1"#,
        r#"clusterip_node_pool_blocks{pool="linux",family="IPv4",state="free"} 2.0"#,
        r#"clusterip_node_pool_blocks{pool="linux",family="IPv4",state="usable"} 4.0"#,
        r#"clusterip_node_pool_blocks{pool="linux",family="IPv4",state="used"} 2.0"#,
        r#"clusterip_node_pool_blocks{pool="windows",family="IPv4",state="free"} 2.0"#,
        r#"clusterip_node_pool_blocks{pool="windows",family="IPv4",state="usable"} 4.0"#,
        r#"clusterip_node_pool_blocks{pool="windows",family="IPv4",state="used"} 2.0"#,
    ];
    measures(&server, &[ASSIGNED, BLOCKS, WAITING, MISPLACED], &blocks).await;
    // A change of a Node without a pool does not repeat the Event.
    nodes.change("bare", json!({"metadata": {"labels": {"other": "x"}}})).await;
    // Later changes of labels do not change the blocks of a Node.
    nodes.change("l1", json!({"metadata": {"labels": os("windows")}})).await;
    measures(&server, &[MISPLACED], &[r#"clusterip_misplaced_nodes{reason="wrong_pool"} 1"#]).await;
    let left = server.log().iter().filter(|line| line.contains("left without a pod CIDR")).count();
    assert_eq!(left, 1, "{:#?}", server.log());
    nodes.change("bare", json!({"metadata": {"labels": os("linux")}})).await;
    expected.insert("bare".to_owned(), texts(&["10.42.2.0/24"]));
    nodes.given("bare").await;
    assert_eq!(nodes.all().await, expected);
    assert_eq!(nodes.events("bare").await, Vec::<String>::new());
}

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

#[tokio::test]
async fn wrong_blocks_are_counted_and_left_alone() {
    let nodes = Nodes::alone().await;
    let of = |os: &str, cidr: &str| pool(os, &[cidr], &json!({"match": {"os": os}}));
    let pools = json!({"pools": [of("windows", "10.42.8.0/22"), of("linux", "172.20.0.0/14")]});
    struct ByHand {
        name: &'static str,
        labels: Value,
        block: &'static str,
    }
    let by_hand = [
        ByHand { name: "right", labels: os("windows"), block: "10.42.8.0/24" },
        ByHand { name: "elsewhere", labels: os("windows"), block: "10.99.0.0/24" },
        ByHand { name: "no-pool", labels: json!({}), block: "10.98.0.0/24" },
        ByHand { name: "of-linux", labels: os("windows"), block: "172.20.0.0/24" },
        ByHand { name: "one", labels: os("linux"), block: "172.20.1.0/24" },
        ByHand { name: "other", labels: os("linux"), block: "172.20.1.0/25" },
        ByHand { name: "service", labels: os("linux"), block: "172.21.7.0/24" },
    ];
    // Some of the Nodes exist before the start, some come later.
    for ByHand { name, labels, block } in &by_hand[..4] {
        nodes.create(name, labels.clone(), &[block]).await;
    }
    let server = nodes.serve(&pools).await;
    for ByHand { name, labels, block } in &by_hand[4..] {
        nodes.create(name, labels.clone(), &[block]).await;
    }
    let misplaced = |reason: &str, count: u8| format!("clusterip_misplaced_nodes{{reason=\"{reason}\"}} {count}");
    let found = [misplaced("outside", 1), misplaced("shared", 2), misplaced("withheld", 1), misplaced("wrong_pool", 1)];
    measures(&server, &[MISPLACED], &found.each_ref().map(String::as_str)).await;
    nodes.create("new", os("linux"), &[]).await;
    assert_eq!(nodes.given("new").await, ["172.20.2.0/24"]);
    nodes.delete("other").await;
    nodes.delete("elsewhere").await;
    let found = [misplaced("withheld", 1), misplaced("wrong_pool", 1)];
    measures(&server, &[MISPLACED], &found.each_ref().map(String::as_str)).await;
    for ByHand { name, block, .. } in by_hand.iter().filter(|node| !["other", "elsewhere"].contains(&node.name)) {
        assert_eq!(nodes.blocks(name).await, [*block], "{name}");
    }
}
