//! The control loop for Nodes, which runs while this process leads and the settings have pools for Nodes. It gives
//! Nodes their blocks.
//!
//! # Guarantees
//! - Each term begins with a complete and consistent list of all Nodes. All blocks in the list are held before the
//!   first block is assigned. The Nodes are watched from exactly that list on.
//! - The policy decides about one Node after the other, as the RangeAllocator of Kubernetes does. The decisions are
//!   written in parallel.
//! - When a term ends, no further request is sent, and the state is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::{io, thread};

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::Verdict;
use kube::Client;
use kube::runtime::watcher::Event;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};

use super::allocation_state::{AllocationState, BlockAnswer, Task};
use super::blocks::{NodePlacement, PlacedBlock, decide_blocks};
use super::node_metrics::{Assignment, Misplaced, NodeMetrics};
use super::node_writer::{BlockWrite, WatchedNode, WriteOutcome, Writer};
use crate::leader::event_recorder::{EventContent, publish_event};
use crate::leader::{Gate, GateChange};
use crate::text::joined;

/// The number of Events that may wait to be written. Further Events are dropped; the log contains all of them.
const MAX_WAITING: usize = 1000;

/// Writes Events about Nodes that have no blocks, one after the other, without delaying its callers.
struct EventQueue(mpsc::Sender<(WatchedNode, &'static str, String)>);

impl EventQueue {
    /// Starts a task that writes Events with `client`. It ends when the queue is dropped and all Events are written.
    fn start(client: Client) -> Self {
        let (sender, mut queue) = mpsc::channel::<(WatchedNode, &str, String)>(MAX_WAITING);
        tokio::spawn(async move {
            while let Some((node, reason, note)) = queue.recv().await {
                let content = EventContent { uid: &node.uid, warning: true, reason, note };
                publish_event(&client, ("v1", "Node"), (None, &node.name), "Assign", content, None).await;
            }
        });
        Self(sender)
    }

    /// Queues an Event about a Node. `reason` is named as the controller manager of Kubernetes names it. If too many
    /// Events wait, this one is dropped and a warning is logged.
    fn tell(&self, node: &WatchedNode, reason: &'static str, note: &str) {
        if self.0.try_send((node.clone(), reason, note.to_owned())).is_err() {
            tracing::warn!(node = node.name, "too many events wait to be written: this one is dropped");
        }
    }
}

/// The number of Nodes that are written at once, each over a connection of its own. etcd commits concurrent writes
/// together: with only 10 at once, the API server and etcd need a tenth more processor time for each Node. More than
/// 60 at once save nothing further.
const MAX_PARALLEL_WRITES: usize = 60;

pub struct Controller {
    pub stores: Stores,
    pub client: Client,
    /// Open while this process leads and the settings have pools of Nodes.
    pub(crate) gate: Gate,
    /// Until when this process leads without another renewal; `None` while it does not lead.
    pub term: watch::Receiver<Option<Instant>>,
    pub metrics: NodeMetrics,
}

impl Controller {
    /// Runs until `shutdown` completes, in a thread of its own. Thus the evaluations for Nodes do not delay other
    /// tasks, and no task changes threads for each Node. The returned future completes when the thread has ended.
    pub fn run_in_thread(
        self,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<impl Future<Output = Result<(), oneshot::error::RecvError>> + Send> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (done, ended) = oneshot::channel();
        thread::Builder::new().name("nodes".to_owned()).spawn(move || {
            runtime.block_on(self.run(shutdown));
            let _ = done.send(());
        })?;
        Ok(ended)
    }

    /// Runs until `shutdown` completes, then waits for the writes in flight.
    async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            let opened = tokio::select! {
                () = &mut shutdown => return,
                opened = self.gate.opened() => opened,
            };
            let Some(settings) = opened else { return };
            let stop = self.term(settings, shutdown.as_mut()).await;
            self.metrics.none_waiting();
            if stop {
                return;
            }
        }
    }

    /// Runs while the gate is open. Returns whether `shutdown` has completed.
    async fn term(
        &mut self,
        mut settings: Arc<LiveSettings>,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
    ) -> bool {
        let mut watch = self.listen();
        let mut term = Term {
            allocation_state: AllocationState::default(),
            listed: None,
            complete: false,
            counted: None,
            writer: Writer::new(self.client.clone(), self.term.clone()),
            events: EventQueue::start(self.client.clone()),
            metrics: self.metrics.clone(),
        };
        let mut writes: JoinSet<(BlockWrite, WriteOutcome)> = JoinSet::new();
        let stop = loop {
            term.update_metrics();
            let free = term.complete && writes.len() < MAX_PARALLEL_WRITES && term.allocation_state.has_task();
            let due = term.allocation_state.due();
            tokio::select! {
                biased;
                () = shutdown.as_mut() => break true,
                change = self.gate.changed() => match change {
                    GateChange::Settings(changed) => {
                        settings = changed;
                        term.allocation_state.settings_changed();
                    }
                    GateChange::NoWork => break false,
                    GateChange::NotLeading => {
                        // Writes in flight are aborted, because another process may lead soon.
                        writes.abort_all();
                        break false;
                    }
                },
                Some(Ok((write, outcome))) = writes.join_next(), if !writes.is_empty() => term.written(&write, outcome),
                Some(event) = watch.recv() => term.handle_event(event),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    term.allocation_state.wake(Instant::now());
                }
                () = std::future::ready(()), if free => {
                    if let Some(write) = term.next_write(&settings) {
                        let writer = term.writer.clone();
                        writes.spawn(async move {
                            let outcome = writer.write(&write).await;
                            (*write, outcome)
                        });
                    }
                }
                () = std::future::ready(()), if term.complete && term.allocation_state.has_unchecked() => {
                    term.check_next(&settings);
                }
            }
            // The spawned writes share this thread, which may otherwise evaluate one Node after the other for a long
            // time.
            yield_now().await;
        };
        // Each write has a time limit: see `patch`.
        while let Some(joined) = writes.join_next().await {
            if let Ok((write, outcome)) = joined {
                term.written(&write, outcome);
            }
        }
        stop
    }

    /// Subscribes to the events of Nodes, which begin with a new list of all Nodes.
    fn listen(&self) -> mpsc::UnboundedReceiver<Event<WatchedNode>> {
        let (events, receiver) = mpsc::unbounded_channel();
        let listener = move |event: &Event<PartialObject>| match seen(event) {
            Some(event) => events.send(event).is_ok(),
            None => true,
        };
        self.stores.listen(&("v1".to_owned(), "Node".to_owned()), Box::new(listener));
        receiver
    }
}

/// Reduces an event to what the controller needs; `None` for a Node without a name.
fn seen(event: &Event<PartialObject>) -> Option<Event<WatchedNode>> {
    Some(match event {
        Event::Init => Event::Init,
        Event::InitApply(node) => Event::InitApply(WatchedNode::of(node)?),
        Event::InitDone => Event::InitDone,
        Event::Apply(node) => Event::Apply(WatchedNode::of(node)?),
        Event::Delete(node) => Event::Delete(WatchedNode::of(node)?),
    })
}

pub(crate) fn has_pools(settings: &LiveSettings) -> bool {
    !settings.settings.nodes.pools.is_empty()
}

struct Term {
    allocation_state: AllocationState,
    /// The Nodes of a list that is still being received; `None` between two lists.
    listed: Option<BTreeSet<String>>,
    /// Whether a complete list of Nodes was received.
    complete: bool,
    /// The numbers of waiting and misplaced Nodes that were last written to the metrics.
    counted: Option<(usize, BTreeMap<Misplaced, u64>)>,
    writer: Writer,
    events: EventQueue,
    metrics: NodeMetrics,
}

impl Term {
    /// Decides about the next Node. Returns the blocks to write, if there are any.
    fn next_write(&mut self, settings: &LiveSettings) -> Option<Box<BlockWrite>> {
        let node = match self.allocation_state.next_task()? {
            Task::Write(write) => return Some(write),
            Task::Ask(node) => node,
        };
        let answer = match self.ask(&node, settings) {
            BlockAnswer::Blocks(blocks) if !blocks.iter().all(|block| self.allocation_state.held.is_free(*block)) => {
                BlockAnswer::Failed(format!("the policy gives blocks that are held: {blocks:?}"))
            }
            answer => answer,
        };
        let write = self.allocation_state.answered(&node.name, &answer, &settings.settings.nodes, Instant::now());
        self.report_answer(&node, &answer);
        write
    }

    fn check_next(&mut self, settings: &LiveSettings) {
        let Some(seen) = self.allocation_state.next_to_check() else { return };
        let held = &self.allocation_state.held;
        let placement = NodePlacement::of(&settings.settings, &seen.unassigned, &seen.blocks, held);
        let misplaced = placement.blocks.iter().filter_map(PlacedBlock::problem).collect();
        self.allocation_state.set_misplaced(&seen.name, misplaced);
    }

    fn ask(&self, node: &WatchedNode, settings: &LiveSettings) -> BlockAnswer {
        let decision = decide_blocks(&node.unassigned, &settings.settings, &self.allocation_state.held.allocation());
        let reason = || decision.verdict.reason().unwrap_or_default().to_owned();
        match (&decision.verdict, &decision.pool) {
            (Verdict::Assigned(blocks), _) => BlockAnswer::Blocks(blocks.clone()),
            (Verdict::Denied(_), Some(pool)) => BlockAnswer::Full { pool: pool.clone(), message: reason() },
            (Verdict::Denied(_), None) => BlockAnswer::Failed(reason()),
            (Verdict::Unchanged(_) | Verdict::Allocated(_), _) => BlockAnswer::NoMatchingPool(reason()),
        }
    }

    fn handle_event(&mut self, event: Event<WatchedNode>) {
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply(seen) => {
                self.listed.get_or_insert_default().insert(seen.name.clone());
                self.allocation_state.apply(seen);
            }
            Event::InitDone => {
                self.allocation_state.retain_listed(&self.listed.take().unwrap_or_default());
                if !std::mem::replace(&mut self.complete, true) {
                    let (nodes, waiting) = (self.allocation_state.len(), self.allocation_state.waiting);
                    tracing::info!(nodes, waiting, "leading: Nodes without pod CIDRs get blocks");
                }
            }
            Event::Apply(seen) => self.allocation_state.apply(seen),
            Event::Delete(seen) => self.allocation_state.delete(&seen.name, &seen.uid),
        }
    }

    /// Reports the answer about a Node. A full pool and a missing pool are reported only once for each Node.
    fn report_answer(&mut self, node: &WatchedNode, answer: &BlockAnswer) {
        let name = node.name.as_str();
        match answer {
            BlockAnswer::Blocks(_) => {}
            BlockAnswer::Full { message, .. } => {
                if self.allocation_state.is_news(name, message) {
                    self.metrics.assigned(Assignment::Full);
                    tracing::warn!(node = name, reason = message, "no pod CIDR");
                    self.events.tell(node, "CIDRNotAvailable", message);
                }
            }
            BlockAnswer::NoMatchingPool(reason) => {
                if self.allocation_state.is_news(name, reason) {
                    self.metrics.assigned(Assignment::NoPool);
                    tracing::info!(node = name, reason, "left without a pod CIDR");
                }
            }
            BlockAnswer::Failed(reason) => {
                self.metrics.assigned(Assignment::Failed);
                tracing::error!(node = name, reason, "no pod CIDR");
            }
        }
    }

    fn written(&mut self, write: &BlockWrite, outcome: WriteOutcome) {
        let name = write.node.name.as_str();
        let blocks = || joined(&write.blocks, ", ");
        match &outcome {
            WriteOutcome::Written => {
                self.metrics.assigned(Assignment::Assigned);
                tracing::info!(node = name, blocks = blocks(), "assigned");
            }
            WriteOutcome::Changed(_) => {
                self.metrics.assigned(Assignment::Conflict);
                tracing::info!(
                    node = name,
                    blocks = blocks(),
                    "another program changed the Node meanwhile: not assigned"
                );
            }
            WriteOutcome::Gone => tracing::info!(node = name, blocks = blocks(), "deleted meanwhile: not assigned"),
            WriteOutcome::Refused(reason) => {
                self.metrics.assigned(Assignment::Failed);
                let note = format!("pod CIDRs {} could not be assigned: {reason}; it is tried again", blocks());
                tracing::warn!(node = name, blocks = blocks(), reason, "refused: trying again");
                if self.allocation_state.is_news(name, reason) {
                    self.events.tell(&write.node, "CIDRAssignmentFailed", &note);
                }
            }
            WriteOutcome::Unclear { reason, .. } => {
                self.metrics.assigned(Assignment::Failed);
                tracing::warn!(node = name, blocks = blocks(), reason, "may not be assigned: trying again");
            }
            WriteOutcome::TooLate => tracing::info!(node = name, "not assigned: this process does not lead any more"),
        }
        self.allocation_state.written(write, outcome, Instant::now());
    }

    fn update_metrics(&mut self) {
        let now = (self.allocation_state.waiting, self.allocation_state.misplaced());
        if self.counted.as_ref() != Some(&now) {
            self.metrics.waiting(now.0);
            self.metrics.misplaced(&now.1);
            self.counted = Some(now);
        }
    }
}
