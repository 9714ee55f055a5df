//! Nodes get their pod CIDRs from `clusterip serve`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::cluster::metrics;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy, Seen};
use crate::support::pod_cidr_cluster::{Nodes, path, pool, settings, twice};
use crate::support::serve_process::Host;

/// One pool for all, of these ranges.
fn one(cidrs: &[&str]) -> Value {
    json!({"pools": [pool("all", cidrs, &json!({}))]})
}

/// A pool for each operating system, none for others.
fn by_os() -> Value {
    let of = |os: &str, cidr: &str| pool(os, &[cidr], &json!({"match": {"os": os}}));
    json!({"pools": [of("windows", "10.42.8.0/22"), of("linux", "10.42.0.0/22")]})
}

fn os(os: &str) -> Value {
    json!({"kubernetes.io/os": os})
}

/// Whether a request gives blocks to this Node.
fn gives(name: &str) -> impl Fn(&Seen) -> bool + Send + Sync + 'static {
    let path = path(name);
    move |seen| seen.is_write() && seen.path == path && seen.body["spec"]["podCIDR"].is_string()
}

/// The blocks of all requests for a Node that a proxy has seen, in order.
fn sent(proxy: &Proxy, name: &str) -> Vec<String> {
    let gives = gives(name);
    let sent = proxy.writes().into_iter().filter(|seen| gives(seen));
    sent.map(|seen| seen.body["spec"]["podCIDR"].as_str().unwrap().to_owned()).collect()
}

/// Waits until the metrics with this prefix, except those that are 0, are these.
async fn measures(host: &Host, names: &[&str], expected: &[&str]) {
    let mut last = Vec::new();
    let waited = tokio::time::timeout(crate::support::eventually::PATIENCE, async {
        loop {
            last.clear();
            for name in names {
                last.extend(metrics(host, name).await.into_iter().filter(|line| !line.ends_with(" 0.0")));
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

const ASSIGNED: &str = "clusterip_node_assignments_total";
const WAITING: &str = "clusterip_nodes_waiting";
const BLOCKS: &str = "clusterip_node_pool_blocks";
const MISPLACED: &str = "clusterip_misplaced_nodes";

#[tokio::test]
async fn each_operating_system_has_its_own_pool() {
    let nodes = Nodes::alone().await;
    let host = nodes.serve(&by_os()).await;
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
    measures(&host, &[ASSIGNED, BLOCKS, WAITING, MISPLACED], &blocks).await;
    // A change of a Node without a pool does not repeat the Event.
    nodes.change("bare", json!({"metadata": {"labels": {"other": "x"}}})).await;
    // Later changes of labels do not change the blocks of a Node.
    nodes.change("l1", json!({"metadata": {"labels": os("windows")}})).await;
    measures(&host, &[MISPLACED], &[r#"clusterip_misplaced_nodes{reason="wrong_pool"} 1"#]).await;
    let left = host.log().iter().filter(|line| line.contains("left without a pod cidr")).count();
    assert_eq!(left, 1, "{:#?}", host.log());
    nodes.change("bare", json!({"metadata": {"labels": os("linux")}})).await;
    expected.insert("bare".to_owned(), texts(&["10.42.2.0/24"]));
    nodes.given("bare").await;
    assert_eq!(nodes.all().await, expected);
    assert_eq!(nodes.events("bare").await, Vec::<String>::new());
}

#[tokio::test]
async fn freed_block_goes_to_the_node_that_waits_longest() {
    let nodes = Nodes::alone().await;
    let host = nodes.serve(&one(&["10.42.0.0/23"])).await;
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
    measures(&host, &[ASSIGNED, WAITING], &waiting).await;
    nodes.delete("b").await;
    assert_eq!(nodes.given("z").await, ["10.42.1.0/24"]);
    nodes.delete("a").await;
    assert_eq!(nodes.given("y").await, ["10.42.0.0/24"]);
    measures(&host, &[WAITING], &["clusterip_nodes_waiting 1"]).await;
    let full = "CIDRNotAvailable: Node x: pool \"all\" (10.42.0.0/23) is full: no block of /24 is free; chosen by default; \
                add a range to the pool, or delete Nodes that no longer exist";
    assert_eq!(nodes.events("x").await, [full]);

    // The pool gets another range, and all blocks stay.
    std::fs::write(host.folder().join("settings.yaml"), settings(&one(&["10.42.0.0/23", "10.43.0.0/24"]))).unwrap();
    assert_eq!(nodes.given("x").await, ["10.43.0.0/24"]);
    let all = nodes.all().await;
    assert_eq!((all["y"][0].as_str(), all["z"][0].as_str()), ("10.42.0.0/24", "10.42.1.0/24"));
    measures(&host, &[WAITING], &[]).await;
}

#[tokio::test]
async fn nodes_are_ignored_until_the_settings_have_node_pools() {
    let nodes = Nodes::alone().await;
    let proxy = Proxy::start(nodes.plane).await;
    let host = nodes.host_at(proxy.url(), &Value::Null).start().await;
    host.logged("leading: misplaced services are moved").await;
    nodes.create("early", json!({}), &[]).await;
    measures(&host, &["clusterip_leader", BLOCKS], &["clusterip_leader 1"]).await;
    std::fs::write(host.folder().join("settings.yaml"), settings(&one(&["10.42.0.0/24"]))).unwrap();
    assert_eq!(nodes.given("early").await, ["10.42.0.0/24"]);
    let nodes_written = || proxy.writes().iter().filter(|seen| seen.path.starts_with("/api/v1/nodes")).count();
    assert_eq!(nodes_written(), 1);
    // The settings have no pools of Nodes any more.
    nodes.create("waits", json!({}), &[]).await;
    nodes.wait_for_event("waits", "CIDRNotAvailable").await;
    measures(&host, &[WAITING], &["clusterip_nodes_waiting 1"]).await;
    std::fs::write(host.folder().join("settings.yaml"), settings(&Value::Null)).unwrap();
    measures(&host, &[WAITING, BLOCKS], &[]).await;
    nodes.delete("early").await;
    nodes.create("late", json!({}), &[]).await;
    std::fs::write(host.folder().join("settings.yaml"), settings(&one(&["10.42.0.0/23"]))).unwrap();
    // The order is that of the names, as a list returns the Nodes.
    assert_eq!(
        (nodes.given("late").await, nodes.given("waits").await),
        (vec!["10.42.0.0/24".to_owned()], vec!["10.42.1.0/24".to_owned()])
    );
}

/// A change between the decision about `x` and the answer to its request.
enum Between {
    Nothing,
    Changes(Value),
    GoesAndComes,
    Goes,
}

/// A fault of the request that gives Node `x` its block, and its consequences.
struct Case {
    name: &'static str,
    /// What happens to the request that writes the blocks of `x`.
    fault: Fault,
    /// What happens to `x` before the answer.
    between: Between,
    /// The blocks of `x` at the end.
    blocks: &'static [&'static str],
    /// The block of the next Node.
    next_block: &'static str,
    /// The Events about `x`.
    events: &'static [&'static str],
}

fn cases() -> Vec<Case> {
    use Between::{Changes, Goes, GoesAndComes, Nothing};
    let first: &[&str] = &["10.42.0.0/24"];
    let label = json!({"metadata": {"labels": {"kubernetes.io/os": "windows"}}});
    let elsewhere = json!({"spec": {"podCIDR": "10.42.3.0/24", "podCIDRs": ["10.42.3.0/24"]}});
    let refused = Fault::Answer(403, "Forbidden", "not by you".to_owned());
    let failed: &[&str] =
        &["CIDRAssignmentFailed: pod CIDRs 10.42.0.0/24 could not be assigned: not by you; it is tried again"];
    vec![
        Case {
            name: "nothing",
            fault: Fault::PauseBefore,
            between: Nothing,
            blocks: first,
            next_block: "10.42.1.0/24",
            events: &[],
        },
        Case {
            name: "a conflict that is none",
            fault: Fault::Answer(409, "Conflict", "so".to_owned()),
            between: Nothing,
            blocks: first,
            next_block: "10.42.1.0/24",
            events: &[],
        },
        // As in the RangeAllocator, the next attempt continues after the failed block.
        Case {
            name: "refused",
            fault: refused,
            between: Nothing,
            blocks: &["10.42.1.0/24"],
            next_block: "10.42.2.0/24",
            events: failed,
        },
        Case {
            name: "failing",
            fault: Fault::Answer(500, "InternalError", "etcd".to_owned()),
            between: Nothing,
            blocks: first,
            next_block: "10.42.1.0/24",
            events: &[],
        },
        Case {
            name: "cut before",
            fault: Fault::CutBefore,
            between: Nothing,
            blocks: first,
            next_block: "10.42.1.0/24",
            events: &[],
        },
        Case {
            name: "cut after",
            fault: Fault::CutAfter,
            between: Nothing,
            blocks: first,
            next_block: "10.42.1.0/24",
            events: &[],
        },
        Case {
            name: "another program changed the node",
            fault: Fault::PauseBefore,
            between: Changes(json!({"metadata": {"annotations": {"a": "b"}}})),
            blocks: first,
            next_block: "10.42.1.0/24",
            events: &[],
        },
        Case {
            name: "given others",
            fault: Fault::PauseBefore,
            between: Changes(elsewhere),
            blocks: &["10.42.3.0/24"],
            next_block: "10.42.1.0/24",
            events: &[],
        },
        Case {
            name: "of another pool now",
            fault: Fault::PauseBefore,
            between: Changes(label),
            blocks: &["10.42.8.0/24"],
            next_block: "10.42.1.0/24",
            events: &[],
        },
        Case {
            name: "gone",
            fault: Fault::PauseBefore,
            between: Goes,
            blocks: &[],
            next_block: "10.42.1.0/24",
            events: &[],
        },
        Case {
            name: "gone and back",
            fault: Fault::PauseBefore,
            between: GoesAndComes,
            blocks: &["10.42.1.0/24"],
            next_block: "10.42.2.0/24",
            events: &[],
        },
    ]
}

#[tokio::test]
async fn failed_request_neither_loses_nor_duplicates_a_block() {
    let nodes = Nodes::alone().await;
    for Case { name, fault, between, blocks, next_block, events } in cases() {
        nodes.clear().await;
        let proxy = Proxy::start(nodes.plane).await;
        let mut host = nodes.serve_through(&proxy, &by_os()).await;
        let gate = proxy.on(gives("x"), fault);
        nodes.create("x", os("linux"), &[]).await;
        gate.arrived().await;
        match between {
            Between::Nothing => {}
            Between::Changes(patch) => nodes.change("x", patch).await,
            Between::Goes => nodes.delete("x").await,
            Between::GoesAndComes => {
                nodes.delete("x").await;
                nodes.create("x", os("linux"), &[]).await;
                nodes.given("x").await;
            }
        }
        gate.release();
        let has = if blocks.is_empty() { Vec::new() } else { nodes.given("x").await };
        if let Some(last) = blocks.last() {
            eventually("x to keep what it gets", async || (nodes.blocks("x").await == [*last]).then_some(())).await;
        }
        assert_eq!(has, blocks, "{name}");
        if blocks.is_empty() {
            host.logged("deleted meanwhile").await;
        }
        nodes.create("y", os("linux"), &[]).await;
        assert_eq!(nodes.given("y").await, [next_block], "{name}");
        // All blocks that were released can be given again, once.
        let mut free = 4;
        for blocks in nodes.all().await.into_values() {
            free -= usize::from(
                blocks[0].starts_with("10.42.0")
                    || ["10.42.1.0/24", "10.42.2.0/24", "10.42.3.0/24"].contains(&blocks[0].as_str()),
            );
        }
        for index in 0..free {
            nodes.create(&format!("rest{index}"), os("linux"), &[]).await;
            nodes.given(&format!("rest{index}")).await;
        }
        nodes.create("over", os("linux"), &[]).await;
        nodes.wait_for_event("over", "CIDRNotAvailable").await;
        assert_eq!(twice(&nodes.all().await), [], "{name}");
        assert_eq!(nodes.events("x").await, events, "{name}");
        assert_eq!(host.terminate().await, 0, "{name}");
    }
}

/// The API server may execute a request without an answer long after. Until then, no other Node gets its block.
#[tokio::test]
async fn block_is_reserved_while_its_request_may_still_succeed() {
    let nodes = Nodes::alone().await;
    let proxy = Proxy::start(nodes.plane).await;
    let host = nodes.serve_through(&proxy, &one(&["10.42.0.0/22"])).await;
    let late = proxy.on(gives("x"), Fault::PauseBefore);
    // All attempts after the first one are refused.
    let refused = proxy.on_nth(0, 1000, gives("x"), Fault::Answer(403, "Forbidden", "not by you".to_owned()));
    nodes.create("x", json!({}), &[]).await;
    late.arrived().await;
    // The first request was given up, and others were refused.
    refused.arrived_times(2).await;
    for (name, block) in [("a", "10.42.1.0/24"), ("b", "10.42.2.0/24"), ("c", "10.42.3.0/24")] {
        nodes.create(name, json!({}), &[]).await;
        assert_eq!(nodes.given(name).await, [block]);
    }
    nodes.create("d", json!({}), &[]).await;
    nodes.wait_for_event("d", "CIDRNotAvailable").await;
    assert_eq!(nodes.blocks("x").await, Vec::<String>::new());
    late.release();
    assert_eq!(nodes.given("x").await, ["10.42.0.0/24"]);
    assert_eq!(nodes.blocks("d").await, Vec::<String>::new());
    let sent: Vec<String> = sent(&proxy, "x");
    assert!(sent.iter().all(|block| block == "10.42.0.0/24"), "{sent:?}");
    let timed = proxy.writes().iter().filter(|seen| gives("x")(seen)).all(|seen| seen.query.contains("timeout="));
    assert!(timed, "the API server knows until when it may carry it out");
    drop(host);
}

#[tokio::test]
async fn next_leader_finishes_the_work_of_a_killed_leader() {
    const NODES: usize = 300;
    let nodes = Nodes::alone().await;
    let mut first = nodes.serve(&one(&["10.64.0.0/15"])).await;
    let second = nodes.host_at(nodes.plane.server(), &one(&["10.64.0.0/15"])).start().await;
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
    let proxy = Proxy::start(nodes.plane).await;
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
    let second = nodes.host_at(nodes.plane.server(), &pools).start().await;
    second.logged("another process leads").await;
    let lease = |seen: &Seen| seen.is_write() && seen.path.ends_with("/leases/clusterip-leader");
    let renewals = proxy.on_nth(0, 1000, lease, Fault::PauseBefore);
    first.logged("could not be renewed in time: this process stops leading").await;
    let before = proxy.writes().iter().filter(|seen| seen.path.starts_with("/api/v1/nodes")).count();
    measures(&first, &[WAITING, MISPLACED], &[]).await;
    nodes.delete("b").await;
    second.logged("leading: nodes without pod CIDRs get blocks").await;
    assert_eq!(nodes.given("waits").await, ["10.42.1.0/24"]);
    measures(&second, &[WAITING, MISPLACED], &[r#"clusterip_misplaced_nodes{reason="outside"} 1"#]).await;
    let after = proxy.writes().iter().filter(|seen| seen.path.starts_with("/api/v1/nodes")).count();
    assert_eq!(before, after, "the first has written a Node");
    measures(&first, &[WAITING, MISPLACED], &[]).await;
    renewals.discard();
}

#[tokio::test]
async fn api_server_outage_loses_no_block() {
    let nodes = Nodes::alone().await;
    let host = nodes.serve(&one(&["10.42.0.0/22"])).await;
    nodes.create("a", json!({}), &[]).await;
    nodes.given("a").await;
    nodes.plane.stop_api_server();
    eventually("the watch of the Nodes to fail", async || {
        let failed = metrics(&host, "clusterip_watch_errors_total").await;
        failed.iter().any(|line| line.contains("kind=\"Node\"")).then_some(())
    })
    .await;
    nodes.plane.start_api_server();
    for (name, block) in [("b", "10.42.1.0/24"), ("c", "10.42.2.0/24")] {
        nodes.create(name, json!({}), &[]).await;
        assert_eq!(nodes.given(name).await, [block]);
    }
    nodes.delete("a").await;
    nodes.create("d", json!({}), &[]).await;
    assert_eq!(nodes.given("d").await, ["10.42.3.0/24"]);
    nodes.create("e", json!({}), &[]).await;
    assert_eq!(nodes.given("e").await, ["10.42.0.0/24"]);
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
        ByHand { name: "nobodys", labels: json!({}), block: "10.98.0.0/24" },
        ByHand { name: "of-linux", labels: os("windows"), block: "172.20.0.0/24" },
        ByHand { name: "one", labels: os("linux"), block: "172.20.1.0/24" },
        ByHand { name: "other", labels: os("linux"), block: "172.20.1.0/25" },
        ByHand { name: "service", labels: os("linux"), block: "172.21.7.0/24" },
    ];
    // Some of the Nodes exist before the start, some come later.
    for ByHand { name, labels, block } in &by_hand[..4] {
        nodes.create(name, labels.clone(), &[block]).await;
    }
    let host = nodes.serve(&pools).await;
    for ByHand { name, labels, block } in &by_hand[4..] {
        nodes.create(name, labels.clone(), &[block]).await;
    }
    let misplaced = |reason: &str, count: u8| format!("clusterip_misplaced_nodes{{reason=\"{reason}\"}} {count}");
    let found = [misplaced("outside", 1), misplaced("shared", 2), misplaced("withheld", 1), misplaced("wrong_pool", 1)];
    measures(&host, &[MISPLACED], &found.each_ref().map(String::as_str)).await;
    nodes.create("new", os("linux"), &[]).await;
    assert_eq!(nodes.given("new").await, ["172.20.2.0/24"]);
    nodes.delete("other").await;
    nodes.delete("elsewhere").await;
    let found = [misplaced("withheld", 1), misplaced("wrong_pool", 1)];
    measures(&host, &[MISPLACED], &found.each_ref().map(String::as_str)).await;
    for ByHand { name, block, .. } in by_hand.iter().filter(|node| !["other", "elsewhere"].contains(&node.name)) {
        assert_eq!(nodes.blocks(name).await, [*block], "{name}");
    }
}
