//! The command is killed at each of its writes, and another command ends the move: the Service has its new or its old
//! address, and nothing of the move is left.

use futures::StreamExt as _;
use serde_json::json;

use super::support::{SEAMLESS, Stage};
use crate::support::command::ended;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy, Seen};

/// How many commands run at once. They spend most of their time waiting.
const AT_ONCE: usize = 16;

/// The fewest writes of a seamless move: the record, three temporary Services, two swaps, and what is deleted.
const FEWEST_WRITES: usize = 12;

/// A write at which the command is killed.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Which write of the move.
    nth: usize,
    /// Whether the API server carries the write out.
    carried_out: bool,
}

/// Moves a Service without interruption, and returns the number of writes.
async fn writes() -> usize {
    let stage = Stage::new("cut-never").await;
    stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    ended(stage.command_through(&proxy, &SEAMLESS)).await.ok();
    let is_write = stage.is_write();
    proxy.writes().iter().filter(|seen| is_write(seen)).count()
}

/// Kills the command at this write, and runs another command until nothing is left of the move. Returns what is wrong
/// afterwards.
async fn cut_off(cut: Cut) -> Option<String> {
    let stage = Stage::new("cut").await;
    let before = stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let fault = if cut.carried_out { Fault::PauseAfter } else { Fault::PauseBefore };
    let gate = proxy.on_nth(cut.nth, 1, stage.is_write(), fault);
    let mut child = stage.command_through(&proxy, &SEAMLESS).spawn().unwrap();
    gate.arrived().await;
    child.kill().unwrap();
    child.wait().unwrap();
    gate.discard();
    stage.free_the_lease().await;

    stage.run_until_nothing_is_left(&SEAMLESS).await;
    stage.wrong_since(&before).await.map(|wrong| format!("{cut:?}: {wrong}"))
}

/// The commands wait for minutes, so both parts run at once.
#[tokio::test(flavor = "multi_thread")]
async fn killed_command_leaves_nothing_behind_after_the_next_one_and_its_late_writes_are_harmless() {
    tokio::join!(killed_at_each_write(), futures::future::join_all(LATE_WRITES.map(carried_out_late)));
}

async fn killed_at_each_write() {
    let writes = writes().await;
    assert!(writes >= FEWEST_WRITES, "{writes}");
    let full = std::env::var_os("CHAOS").is_some();
    let cuts = (0..writes).flat_map(|nth| [true, false].map(|carried_out| Cut { nth, carried_out }));
    // A write that is carried out, and one that is not but precedes another, leave the same state.
    let cuts: Vec<Cut> = cuts.filter(|cut| full || cut.carried_out).collect();
    let results = futures::stream::iter(cuts).map(cut_off).buffer_unordered(AT_ONCE);
    assert_eq!(results.filter_map(std::future::ready).collect::<Vec<_>>().await, [""; 0]);
}

/// A write that the API server carries out while the next command ends the move.
struct Late {
    name: &'static str,
    write: fn(&Seen) -> bool,
}

const LATE_WRITES: [Late; 3] = [
    Late {
        name: "late-create",
        write: |seen| seen.method == "POST" && !seen.is_dry_run() && seen.path.ends_with("/services"),
    },
    Late { name: "late-swap", write: |seen| seen.sets_type("ExternalName") && seen.path.ends_with("/services/web") },
    Late { name: "late-delete", write: |seen| seen.method == "DELETE" && seen.path.contains("/services/") },
];

/// Kills the command at this write, which the API server carries out when the next command has begun.
async fn carried_out_late(Late { name, write }: Late) {
    let stage = Stage::new(name).await;
    let before = stage.service("web", json!({})).await;
    let proxy = Proxy::start(&stage.plane).await;
    let gate = proxy.on(write, Fault::PauseBefore);
    let mut child = stage.command_through(&proxy, &SEAMLESS).spawn().unwrap();
    gate.arrived().await;
    child.kill().unwrap();
    child.wait().unwrap();
    stage.free_the_lease().await;

    let second = Proxy::start(&stage.plane).await;
    let resumed = tokio::spawn(ended(stage.command_through(&second, &SEAMLESS)));
    let is_write = stage.is_write();
    eventually(&format!("{name}: the next command to write"), async || {
        second.writes().iter().any(&is_write).then_some(())
    })
    .await;
    gate.release();
    gate.carried_out().await;
    resumed.await.unwrap();
    stage.run_until_nothing_is_left(&SEAMLESS).await;
    assert_eq!(stage.wrong_since(&before).await, None, "{name}");
}
