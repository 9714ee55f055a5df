//! The control loop for Nodes, which gives Nodes their blocks while this process leads and the settings have pools for
//! them.
//!
//! # Guarantees
//! - Each term begins with a complete and consistent list of all Nodes, and holds all blocks in it before it assigns
//!   the first block. The Nodes are watched from exactly that list on.
//! - The policy decides about one Node after the other, as the RangeAllocator of Kubernetes does. The decisions are
//!   written in parallel.
//! - When a term ends, no further request is sent, and the state is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::{io, thread};

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::metrics::whole;
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::{Decision, Verdict};
use futures::FutureExt;
use futures::future::FusedFuture;
use kube::Client;
use kube::runtime::watcher::Event;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{Instant, sleep_until};

use super::allocation_state::{AllocationState, Task};
use super::held_blocks::{NodePlacement, PlacedBlock, decide_blocks};
use super::node_metrics::{Assignment, NodeMetrics};
use super::node_writer::{BlockWrite, WatchedNode, WriteOutcome, Writer};
use crate::leader::Gate;
use crate::leader::event_recorder::{EventContent, EventQueue};
use crate::text::joined;

/// How many Nodes are written at once. etcd commits concurrent writes together: with only 10 at once, the API server
/// and etcd need a tenth more processor time for each Node. More than 60 at once save nothing further.
const MAX_PARALLEL_WRITES: usize = 60;

pub struct Controller {
    pub stores: Stores,
    pub client: Client,
    pub(crate) gate: Gate,
    pub term: watch::Receiver<Option<Instant>>,
    pub metrics: NodeMetrics,
}

impl Controller {
    /// Runs until `shutdown`, in a thread of its own, so that evaluations for Nodes do not delay other tasks.
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

    async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown.fuse());
        loop {
            let opened = tokio::select! {
                () = &mut shutdown => return,
                opened = self.gate.opened() => opened,
            };
            let Some(settings) = opened else { return };
            self.term(settings, shutdown.as_mut()).await;
            self.metrics.waiting.set(0);
            self.metrics.misplaced(&BTreeMap::new());
            if shutdown.is_terminated() {
                return;
            }
        }
    }

    /// Runs while the gate is open, until `shutdown`. Then the writes in flight end, within their time limit: an
    /// aborted one could still be carried out after the next list of all Nodes.
    async fn term(&mut self, mut settings: Arc<LiveSettings>, mut shutdown: Pin<&mut impl FusedFuture<Output = ()>>) {
        let mut watch = self.listen();
        let mut term = Term {
            allocation_state: AllocationState::default(),
            listed: None,
            complete: false,
            events: EventQueue::start(self.client.clone()),
            metrics: self.metrics.clone(),
        };
        let writer = Writer::new(self.client.clone(), self.term.clone());
        let mut writes: JoinSet<(BlockWrite, WriteOutcome)> = JoinSet::new();
        loop {
            self.metrics.waiting.set(whole(term.allocation_state.waiting.len()));
            self.metrics.misplaced(&term.allocation_state.misplaced());
            let free = term.complete && writes.len() < MAX_PARALLEL_WRITES && term.allocation_state.has_task();
            let unchecked = term.complete && !term.allocation_state.unchecked.is_empty();
            let due = term.allocation_state.due();
            tokio::select! {
                biased;
                () = shutdown.as_mut() => break,
                changed = self.gate.changed() => match changed {
                    Some(changed) => {
                        settings = changed;
                        term.allocation_state.settings_changed();
                    }
                    None => break,
                },
                Some(Ok((write, outcome))) = writes.join_next() => term.written(&write, outcome),
                Some(event) = watch.recv() => term.handle_event(event),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    term.allocation_state.wake(Instant::now());
                }
                () = ready(()), if free => {
                    if let Some(write) = term.next_write(&settings) {
                        let writer = writer.clone();
                        writes.spawn(async move {
                            let outcome = writer.write(&write).await;
                            (*write, outcome)
                        });
                    }
                }
                () = ready(()), if unchecked => term.check_next(&settings),
            }
            // The writes share this thread, which may otherwise evaluate one Node after the other for a long time.
            yield_now().await;
        }
        if !self.gate.leadership.borrow().leads() {
            // Another process may lead soon.
            writes.abort_all();
        }
        while let Some(joined) = writes.join_next().await {
            if let Ok((write, outcome)) = joined {
                term.written(&write, outcome);
            }
        }
    }

    /// Subscribes to the events of Nodes, which begin with a new list of all Nodes.
    fn listen(&self) -> mpsc::UnboundedReceiver<Event<PartialObject>> {
        let (events, receiver) = mpsc::unbounded_channel();
        let listener = move |event: &Event<PartialObject>| events.send(event.clone()).is_ok();
        self.stores.listen(&("v1".to_owned(), "Node".to_owned()), Box::new(listener));
        receiver
    }
}

struct Term {
    allocation_state: AllocationState,
    /// The Nodes of a list that is still being received; `None` between two lists.
    listed: Option<BTreeSet<String>>,
    complete: bool,
    events: EventQueue,
    metrics: NodeMetrics,
}

impl Term {
    fn next_write(&mut self, settings: &LiveSettings) -> Option<Box<BlockWrite>> {
        let node = match self.allocation_state.next_task()? {
            Task::Write(write) => return Some(write),
            Task::Ask(node) => node,
        };
        let held = &self.allocation_state.held;
        let mut decision = decide_blocks(&node.unassigned, &settings.settings, &held.allocation());
        if let Some(blocks) = decision.assigned()
            && !blocks.iter().all(|block| held.is_free(*block))
        {
            decision = Decision::denied(500, format!("the policy gives blocks that are held: {blocks:?}"));
        }
        let write = self.allocation_state.decided(&node.name, &decision, &settings.settings.nodes, Instant::now());
        self.report_decision(&node, &decision);
        write
    }

    fn check_next(&mut self, settings: &LiveSettings) {
        let Some(seen) = self.allocation_state.next_to_check() else { return };
        let held = &self.allocation_state.held;
        let placement = NodePlacement::of(&settings.settings, &seen.unassigned, &seen.blocks, held);
        let misplaced = placement.blocks.iter().filter_map(PlacedBlock::problem).collect();
        self.allocation_state.set_misplaced(&seen.name, misplaced);
    }

    fn handle_event(&mut self, event: Event<PartialObject>) {
        match event {
            Event::Init => self.listed = Some(BTreeSet::new()),
            Event::InitApply(node) => {
                self.listed.get_or_insert_default().extend(node.metadata.name.clone());
                self.handle_event(Event::Apply(node));
            }
            Event::InitDone => {
                self.allocation_state.retain_listed(&self.listed.take().unwrap_or_default());
                if !std::mem::replace(&mut self.complete, true) {
                    let (nodes, waiting) = (self.allocation_state.len(), self.allocation_state.waiting.len());
                    tracing::info!(nodes, waiting, "leading: Nodes without pod CIDRs get blocks");
                }
            }
            Event::Apply(node) => WatchedNode::of(&node).into_iter().for_each(|node| self.allocation_state.apply(node)),
            Event::Delete(node) => {
                if let Some(node) = WatchedNode::of(&node) {
                    self.allocation_state.delete(&node.name, &node.uid);
                }
            }
        }
    }

    /// Reports the decision about a Node. A full pool and a missing pool are reported only once for each Node.
    fn report_decision(&mut self, node: &WatchedNode, decision: &Decision) {
        let name = node.name.as_str();
        let reason = decision.verdict.reason().unwrap_or_default();
        match (&decision.verdict, &decision.pool) {
            (Verdict::Denied(_), None) => {
                self.metrics.assigned(Assignment::Failed);
                tracing::error!(node = name, reason, "no pod CIDR");
            }
            (Verdict::Denied(_), Some(_)) if self.allocation_state.is_news(name, reason) => {
                self.metrics.assigned(Assignment::Full);
                tracing::warn!(node = name, reason, "no pod CIDR");
                self.tell(node, "CIDRNotAvailable", reason);
            }
            (Verdict::Unchanged(_) | Verdict::Allocated(_), _) if self.allocation_state.is_news(name, reason) => {
                self.metrics.assigned(Assignment::NoPool);
                tracing::info!(node = name, reason, "left without a pod CIDR");
            }
            _ => {}
        }
    }

    fn written(&mut self, write: &BlockWrite, outcome: WriteOutcome) {
        let (name, blocks) = (write.node.name.as_str(), joined(&write.blocks, ", "));
        let (result, text, reason) = match &outcome {
            WriteOutcome::Written => (Some(Assignment::Assigned), "assigned", None),
            WriteOutcome::Changed(_) => {
                (Some(Assignment::Conflict), "another program changed the Node meanwhile: not assigned", None)
            }
            WriteOutcome::Gone => (None, "deleted meanwhile: not assigned", None),
            WriteOutcome::TooLate => (None, "not assigned: this process does not lead any more", None),
            WriteOutcome::Refused(reason) => (Some(Assignment::Failed), "refused: trying again", Some(reason)),
            WriteOutcome::Unclear { reason, .. } => {
                (Some(Assignment::Failed), "may not be assigned: trying again", Some(reason))
            }
        };
        result.into_iter().for_each(|result| self.metrics.assigned(result));
        match reason {
            Some(reason) => tracing::warn!(node = name, blocks, reason, "{text}"),
            None => tracing::info!(node = name, blocks, "{text}"),
        }
        if let WriteOutcome::Refused(reason) = &outcome
            && self.allocation_state.is_news(name, reason)
        {
            let note = format!("pod CIDRs {blocks} could not be assigned: {reason}; it is tried again");
            self.tell(&write.node, "CIDRAssignmentFailed", &note);
        }
        self.allocation_state.written(write, outcome, Instant::now());
    }

    /// Queues an Event about a Node without blocks. `reason` is named as the controller manager of Kubernetes names it.
    fn tell(&self, node: &WatchedNode, reason: &str, note: &str) {
        let content = EventContent { uid: &node.uid, warning: true, reason, note: note.to_owned() };
        self.events.tell(("v1", "Node"), (None, &node.name), "Assign", content);
    }
}
