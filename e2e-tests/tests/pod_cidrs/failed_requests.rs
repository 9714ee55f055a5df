//! A request that assigns a block fails, or its answer is lost.

use serde_json::{Value, json};

use super::support::{by_os, gives, one, os, sent};
use crate::support::cluster::metrics;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::pod_cidr_cluster::{Nodes, twice};

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
            name: "an unfounded conflict",
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
            name: "another program changed the Node",
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
        let proxy = Proxy::start(&nodes.plane).await;
        let mut server = nodes.serve_through(&proxy, &by_os()).await;
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
            eventually("x to keep its block", async || (nodes.blocks("x").await == [*last]).then_some(())).await;
        }
        assert_eq!(has, blocks, "{name}");
        if blocks.is_empty() {
            server.logged("deleted meanwhile").await;
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
        assert_eq!(server.terminate().await, 0, "{name}");
    }
}

/// The API server may execute a request without an answer long after. Until then, no other Node gets its block.
#[tokio::test]
async fn block_is_reserved_while_its_request_may_still_succeed() {
    let nodes = Nodes::alone().await;
    let proxy = Proxy::start(&nodes.plane).await;
    let server = nodes.serve_through(&proxy, &one(&["10.42.0.0/22"])).await;
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
    assert!(timed, "a request has no timeout");
    drop(server);
}

#[tokio::test]
async fn api_server_outage_loses_no_block() {
    let nodes = Nodes::alone().await;
    let server = nodes.serve(&one(&["10.42.0.0/22"])).await;
    nodes.create("a", json!({}), &[]).await;
    nodes.given("a").await;
    nodes.plane.stop_api_server();
    eventually("the watch of the Nodes to fail", async || {
        let failed = metrics(&server, "clusterip_watch_errors_total").await;
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
