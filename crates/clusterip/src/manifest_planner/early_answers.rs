//! Evaluates Services before it is their turn, on several threads.
//!
//! Services are planned one after the other, because an address that one of them gets is not free for the next one. But
//! the policy's answer depends only on the request, the settings and the answers to its look-ups, and most evaluations
//! look up different addresses. Therefore Services are evaluated while those before them are planned. When it is the
//! turn of a Service, its early answer counts only if the request and the answers to all look-ups would still be the
//! same. Otherwise the Service is evaluated again. So the plan is the same for every number of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Scope;
use std::vec;

use clusterip_core::address::Order;
use clusterip_core::prefetched::Prefetched;
use clusterip_host::cluster::lookups::snapshot::SnapshotCalls;
use clusterip_host::cluster::manifests::Manifest;
use clusterip_host::policy::host_calls::{HostCall, HostCalls};
use clusterip_host::policy::module::Series;
use clusterip_host::policy::recorded_lookups::RecordedLookups;

use super::plan_evaluator::{AnsweredService, PlanEvaluator};

/// How many Services are in a group. A thread evaluates them one after the other, and sends their answers together.
pub(super) const GROUP: usize = 32;
/// How many groups of all threads may wait for their turn, besides those that the threads evaluate or send. With more
/// of them, more answers would be out of date.
pub(super) const WAITING_GROUPS: usize = 8;

/// An answer that was given before it was the turn of its Service.
pub(super) struct EarlyAnswer {
    answered: AnsweredService,
    lookups: Arc<EarlyLookups>,
}

impl EarlyAnswer {
    /// The answer, if it is certain that the policy would give the same one now.
    pub(super) fn if_current(self, evaluator: &PlanEvaluator<'_>) -> Option<AnsweredService> {
        let EarlyLookups { calls, recorded, has_listed } = &*self.lookups;
        let is_current = !has_listed.load(Ordering::Relaxed)
            && evaluator.updated_service(&self.answered.id) == self.answered.old
            && recorded.hold(calls);
        is_current.then_some(self.answered)
    }
}

/// The early answers of a plan, in the order of its Services.
pub(super) struct EarlyAnswers {
    /// One receiver for each thread, which send the groups in turn. Empty if no Service is evaluated early.
    receivers: Vec<Receiver<Vec<Option<EarlyAnswer>>>>,
    /// How many groups have been received.
    received: usize,
    /// The answers of the last group that were not taken yet.
    rest: vec::IntoIter<Option<EarlyAnswer>>,
}

impl EarlyAnswers {
    /// The early answer of the next Service; `None` if the Service must be evaluated in its turn.
    pub(super) fn next(&mut self) -> Option<EarlyAnswer> {
        if self.rest.as_slice().is_empty() && !self.receivers.is_empty() {
            let receiver = &self.receivers[self.received % self.receivers.len()];
            // Receiving fails only if the thread has panicked. Then there is no plan: the scope panics when it ends.
            self.rest = receiver.recv().unwrap_or_default().into_iter();
            self.received += 1;
        }
        self.rest.next().flatten()
    }
}

impl PlanEvaluator<'_> {
    /// Begins to evaluate Services before it is their turn. The threads end after the last Service, or when the result
    /// is dropped.
    pub(super) fn early_answers<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        services: &'s [(usize, &'s Manifest)],
    ) -> EarlyAnswers {
        // With `lowest`, every Service looks up the address that the one before it gets.
        let evaluates_early = self.threads > 1 && services.len() > 1 && self.settings.order != Order::Lowest;
        let threads = if evaluates_early { self.threads.min(services.len().div_ceil(GROUP)) } else { 0 };
        let spawn = |first: usize| {
            let (sender, receiver) = sync_channel((WAITING_GROUPS / threads).max(1));
            scope.spawn(move || {
                let mut series = self.module.series();
                for group in services.chunks(GROUP).skip(first).step_by(threads) {
                    let answer =
                        |&(index, manifest): &(usize, &Manifest)| self.early_answer(index, manifest, &mut series);
                    if sender.send(group.iter().map(answer).collect()).is_err() {
                        break;
                    }
                }
            });
            receiver
        };
        EarlyAnswers { receivers: (0..threads).map(spawn).collect(), received: 0, rest: Vec::new().into_iter() }
    }

    fn early_answer(&self, index: usize, manifest: &Manifest, series: &mut Series<'_>) -> Option<EarlyAnswer> {
        let service = self.pending(index, manifest);
        if self.is_external(&service) {
            return None;
        }
        let lookups = Arc::new(EarlyLookups::new(self.calls(&service)));
        // If the policy does not answer now, the Service is evaluated again, and the error is reported in its turn.
        let answer = series.validate(&service.request(), &self.document, lookups.clone()).ok()?;
        Some(EarlyAnswer { answered: service.answered(answer), lookups })
    }
}

/// The look-ups of an evaluation. Those are recorded whose answers change while Services are planned.
struct EarlyLookups {
    calls: SnapshotCalls,
    recorded: RecordedLookups,
    /// Whether the policy has listed Services. It gets no list, because each planned Service changes it.
    has_listed: AtomicBool,
}

impl EarlyLookups {
    fn new(calls: SnapshotCalls) -> Self {
        Self { calls, recorded: RecordedLookups::default(), has_listed: AtomicBool::new(false) }
    }
}

impl HostCalls for EarlyLookups {
    fn services(&self) -> usize {
        self.calls.services()
    }

    fn prefetched(&self) -> Prefetched {
        self.calls.prefetched()
    }

    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        // Only Services change while Services are planned, and with them the `IPAddress` objects of their addresses.
        let changes = |kind: &str| matches!(kind, "Service" | "IPAddress");
        match call {
            HostCall::ListAll { kind, .. } | HostCall::ListNamespace { kind, .. } if changes(kind) => {
                self.has_listed.store(true, Ordering::Relaxed);
                Err(format!("no list of {kind} objects before it is the turn of the Service"))
            }
            HostCall::Get { kind, .. } if changes(kind) => self.recorded.answer(&self.calls, call),
            _ => self.calls.answer(call),
        }
    }
}
