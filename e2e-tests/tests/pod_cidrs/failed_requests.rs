//! A request that assigns a block fails, or its answer is lost.

use serde_json::{Value, json};

use super::support::{gives, one, sent};
use crate::support::cluster::metrics;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::pod_cidr_cluster::{Nodes, pool, twice};
use crate::support::serve_process::Server;

/// A change between the decision about a Node and the answer to its request.
enum Between {
    Nothing,
    Changes(Value),
    GoesAndComes,
    Goes,
}

/// A fault of the request that gives a Node its block, and its consequences. The blocks are those of the pool of the row,
/// by number.
struct Case {
    name: &'static str,
    /// What happens to the request that writes the blocks of the Node.
    fault: Fault,
    /// What happens to the Node before the answer.
    between: Between,
    /// The block of the Node at the end.
    block: Option<u8>,
    /// The block of the next Node.
    next_block: u8,
    /// Whether an Event about the Node says that its block could not be assigned.
    has_event: bool,
}

/// The first block of the other pool of a row.
const OTHER: u8 = 8;

fn cases() -> Vec<Case> {
    use Between::{Changes, Goes, GoesAndComes, Nothing};
    let case = |name, fault, between, block, next_block| {
        let has_event = name == "refused";
        Case { name, fault, between, block, next_block, has_event }
    };
    let moved = json!({"metadata": {"labels": {"pool": "other"}}});
    let annotated = json!({"metadata": {"annotations": {"a": "b"}}});
    let answer = |code, reason, text: &str| Fault::Answer(code, reason, text.to_owned());
    vec![
        case("nothing", Fault::PauseBefore, Nothing, Some(0), 1),
        case("an-unfounded-conflict", answer(409, "Conflict", "so"), Nothing, Some(0), 1),
        // As in the RangeAllocator, the next attempt continues after the failed block.
        case("refused", answer(403, "Forbidden", "not by you"), Nothing, Some(1), 2),
        case("failing", answer(500, "InternalError", "etcd"), Nothing, Some(0), 1),
        case("cut-before", Fault::CutBefore, Nothing, Some(0), 1),
        case("cut-after", Fault::CutAfter, Nothing, Some(0), 1),
        case("changed-by-others", Fault::PauseBefore, Changes(annotated), Some(0), 1),
        // 7 is the number of this row.
        case("given-others", Fault::PauseBefore, Changes(set_block(block_of(7, 3))), Some(3), 1),
        case("of-another-pool-now", Fault::PauseBefore, Changes(moved), Some(OTHER), 1),
        case("gone", Fault::PauseBefore, Goes, None, 1),
        case("gone-and-back", Fault::PauseBefore, GoesAndComes, Some(1), 2),
    ]
}

fn set_block(block: String) -> Value {
    json!({"spec": {"podCIDR": block, "podCIDRs": [block]}})
}

/// A block of the pools of a row.
fn block_of(row: usize, block: u8) -> String {
    format!("10.{}.{block}.0/24", 50 + row)
}

/// A pool of four blocks for each row, and another one for its Nodes with another label.
fn pools_of(cases: &[Case]) -> Value {
    let pools = cases.iter().enumerate().flat_map(|(row, Case { name, .. })| {
        let of = |kind: &str, first: u8| {
            let range = block_of(row, first).replace("/24", "/22");
            let labels = json!({"row": name, "pool": kind});
            pool(&format!("{name}-{kind}"), &[&range], &json!({"match": {"nodeLabels": labels}}))
        };
        [of("usual", 0), of("other", OTHER)]
    });
    json!({"pools": pools.collect::<Vec<_>>()})
}

/// All rows at once, each with Nodes and pools of its own.
#[tokio::test]
async fn failed_request_neither_loses_nor_duplicates_a_block() {
    let nodes = Nodes::alone().await;
    let proxy = Proxy::start(&nodes.plane).await;
    let cases = cases();
    let mut server = nodes.serve_through(&proxy, &pools_of(&cases)).await;
    let rows = cases.into_iter().enumerate().map(|(row, case)| carried_out(&nodes, &proxy, &server, row, case));
    futures::future::join_all(rows).await;
    assert_eq!(twice(&nodes.all().await), []);
    assert_eq!(server.terminate().await, 0);
}

async fn carried_out(nodes: &Nodes, proxy: &Proxy, server: &Server, row: usize, case: Case) {
    let Case { name, fault, between, block, next_block, has_event } = case;
    let labels = || json!({"row": name, "pool": "usual"});
    let [x, y, over] = ["x", "y", "over"].map(|node| format!("{name}-{node}"));
    let gate = proxy.on(gives(&x), fault);
    nodes.create(&x, labels(), &[]).await;
    gate.arrived_for(name).await;
    match between {
        Between::Nothing => {}
        Between::Changes(patch) => nodes.change(&x, patch).await,
        Between::Goes => nodes.delete(&x).await,
        Between::GoesAndComes => {
            nodes.delete(&x).await;
            nodes.create(&x, labels(), &[]).await;
            nodes.given(&x).await;
        }
    }
    gate.release();
    match block {
        Some(block) => {
            let block = block_of(row, block);
            assert_eq!(nodes.given(&x).await, [block.as_str()], "{name}");
        }
        None => {
            // Another row causes such a line about its own Node.
            let node = format!("node=\"{x}\"");
            eventually(&format!("a line of the log that {x} was deleted meanwhile"), async || {
                server.log().iter().any(|line| line.contains("deleted meanwhile") && line.contains(&node)).then_some(())
            })
            .await;
        }
    }
    nodes.create(&y, labels(), &[]).await;
    assert_eq!(nodes.given(&y).await, [block_of(row, next_block)], "{name}");
    // All blocks that were released can be given again, once.
    let given = if block.is_some_and(|block| block < OTHER) { 2 } else { 1 };
    for index in given..4 {
        let rest = format!("{name}-rest{index}");
        nodes.create(&rest, labels(), &[]).await;
        nodes.given(&rest).await;
    }
    nodes.create(&over, labels(), &[]).await;
    nodes.wait_for_event(&over, "CIDRNotAvailable").await;
    if let Some(block) = block {
        assert_eq!(nodes.blocks(&x).await, [block_of(row, block)], "{name}");
    }
    let failed = format!(
        "CIDRAssignmentFailed: pod CIDRs {} could not be assigned: not by you; it is tried again",
        block_of(row, 0)
    );
    let events = if has_event { vec![failed] } else { Vec::new() };
    assert_eq!(nodes.events(&x).await, events, "{name}");
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
