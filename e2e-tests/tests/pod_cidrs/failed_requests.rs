//! A request that assigns a block fails, or its answer is lost.

use serde_json::{Value, json};

use super::support::gives;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy, Seen};
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
    let gives_blocks =
        |seen: &Seen| seen.path.starts_with("/api/v1/nodes/") && seen.body["spec"]["podCIDR"].is_string();
    let given: Vec<Seen> = proxy.writes().into_iter().filter(gives_blocks).collect();
    assert!(given.iter().all(|seen| seen.query.contains("timeout=")), "a request has no timeout: {given:?}");
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
