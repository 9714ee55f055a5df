//! Evaluates Services before it is their turn, on several threads.
//!
//! Services are planned one after the other, because an address that one of them gets is not free for the next one. But
//! the policy's answer depends only on the request, the settings and the answers to its look-ups, and most evaluations
//! look up different addresses. Therefore Services are evaluated while those before them are planned. When it is the
//! turn of a Service, its early answer counts only if all look-ups would still have the same answers. Otherwise the
//! Service is evaluated again. So the plan is the same for every number of threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clusterip_core::address::Order;
use clusterip_core::prefetched::Prefetched;
use clusterip_host::cluster::lookups::snapshot::SnapshotCalls;
use clusterip_host::cluster::manifests::Manifest;
use clusterip_host::policy::host_calls::{HostCall, HostCalls};
use clusterip_host::policy::module::Series;
use clusterip_host::policy::recorded_lookups::RecordedLookups;

use super::plan_evaluator::{AnsweredService, PlanEvaluator};

/// How many Services are evaluated while as many others are planned. With more of them, the threads would wait less for
/// each other, but more answers would be out of date.
pub(super) const BATCH: usize = 256;

/// An answer that was given before it was the turn of its Service.
pub(super) struct EarlyAnswer {
    pub(super) answered: AnsweredService,
    lookups: Arc<EarlyLookups>,
}

impl EarlyAnswer {
    /// Whether all look-ups of the evaluation would have the same answers now.
    pub(super) fn holds(&self) -> bool {
        let EarlyLookups { calls, recorded, has_listed } = &*self.lookups;
        !has_listed.load(Ordering::Relaxed) && recorded.hold(calls)
    }
}

impl PlanEvaluator<'_> {
    /// Evaluates Services before it is their turn. The results are in the order of `services`; a result is `None` if
    /// the Service must be evaluated when it is its turn.
    pub(super) fn early_answers(&self, services: &[(usize, &Manifest)]) -> Vec<Option<EarlyAnswer>> {
        let mut answers: Vec<Option<EarlyAnswer>> = services.iter().map(|_| None).collect();
        // With `lowest`, every Service looks up the address that the one before it gets.
        if self.threads < 2 || services.len() < 2 || self.settings.order == Order::Lowest {
            return answers;
        }
        let share = services.len().div_ceil(self.threads);
        thread::scope(|scope| {
            for (services, answers) in services.chunks(share).zip(answers.chunks_mut(share)) {
                scope.spawn(move || {
                    let mut series = self.module.series();
                    for (&(index, manifest), answer) in services.iter().zip(answers) {
                        *answer = self.early_answer(index, manifest, &mut series);
                    }
                });
            }
        });
        answers
    }

    fn early_answer(&self, index: usize, manifest: &Manifest, series: &mut Series<'_>) -> Option<EarlyAnswer> {
        let service = self.pending(index, manifest);
        if self.is_external(&service) {
            return None;
        }
        let lookups = Arc::new(EarlyLookups::new(self.calls(&service)));
        // If the policy does not answer now, the Service is evaluated again, and the error is reported in its turn.
        let answer = series.validate(&service.request, &self.document, lookups.clone()).ok()?;
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
