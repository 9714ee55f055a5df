//! Reports moves, and the Services that stay where they are: in the log, as Events and as metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use clusterip_cluster::lookups::snapshot::StoredService;
use clusterip_cluster::object::text;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::outcome::{Outcome, Size, Unmoved};
use serde_json::Value;

use super::retries::outgrows;
use super::{Found, Next, REPORTED, Reconciler, WATCHED};
use crate::leader::event_recorder::{EventContent, publish_service_event};
use crate::services::controller::brakes::{Brake, Why};
use crate::services::misplaced::{AskedBy, Misplaced};
use crate::services::mover::MoveError;
use crate::services::service_metrics::{MoveResult, StayReason};

/// How many reports about one Service may be written at once, and after which time one more may be written.
const REPORTS_AT_ONCE: u32 = 4;
const REPORTS_EVERY: Duration = Duration::from_secs(15 * 60);

/// Limits the reports about each Service that no user asked for. With one write of a workload, a tenant can make all of
/// its Services misplaced, and with the next write put all of them in place again. Each Event takes storage of the API
/// server for an hour.
#[derive(Debug, Default)]
pub(super) struct ReportLimit(BTreeMap<ServiceKey, Reported>);

#[derive(Debug)]
struct Reported {
    paid: Instant,
    /// The Service with the annotation that was answered last, as the stores showed it.
    answered: Weak<StoredService>,
}

impl ReportLimit {
    fn of(&mut self, id: &ServiceKey, now: Instant) -> &mut Reported {
        self.0.entry(id.clone()).or_insert(Reported { paid: now, answered: Weak::new() })
    }

    /// Whether the author of this Service, which has the annotation that asks for a move, gets an answer: one for each
    /// version of the Service, because the annotation stays if it can't be removed.
    fn answers(&mut self, id: &ServiceKey, record: &Arc<StoredService>, now: Instant) -> bool {
        let reported = self.of(id, now);
        let is_new = reported.answered.as_ptr() != Arc::as_ptr(record);
        reported.answered = Arc::downgrade(record);
        is_new
    }

    /// Whether one more report about this Service may be written. Counts it if so.
    fn take(&mut self, id: &ServiceKey, now: Instant) -> bool {
        let paid = &mut self.of(id, now).paid;
        let next = now.max(*paid) + REPORTS_EVERY;
        let may = next <= now + REPORTS_EVERY * REPORTS_AT_ONCE;
        if may {
            *paid = next;
        }
        may
    }
}

impl Reconciler {
    /// Reports that a misplaced Service stays where it is, and answers the request or annotation that asks for a move.
    pub(super) async fn report_stay(
        &self,
        id: &ServiceKey,
        service: &Value,
        misplaced: &Misplaced,
        reason: StayReason,
        detail: &str,
    ) -> Next {
        if reason == StayReason::TooLarge {
            self.brakes.lock().stop_waiting(id);
        }
        self.report(id, misplaced, reason, detail).await;
        self.remove_request_and_annotation(id, service).await;
        Next::After(if reason == StayReason::ReadyEndpoints { WATCHED } else { REPORTED })
    }

    pub(super) async fn report_outcome(
        &self,
        id: &ServiceKey,
        uid: &str,
        ended: &Result<Outcome, MoveError>,
        size: Size,
    ) {
        let (namespace, name) = (&id.namespace, &id.name);
        if outgrows(ended, size) {
            return tracing::debug!(namespace, name, "the move waits for a place for large Services");
        }
        let is_reported =
            || self.found.lock().reports.take(id, Instant::now()) || self.requests.considered(id).is_some();
        let outcome = match ended {
            Ok(outcome) => outcome,
            Err(error) => {
                self.metrics.moved(MoveResult::Failed);
                if !is_reported() {
                    return tracing::debug!(namespace, name, %error, "move failed again");
                }
                tracing::error!(namespace, name, %error, "move failed");
                let content = EventContent { uid, warning: true, reason: "MoveFailed", note: error.to_string() };
                return self.publish_event(id, content).await;
            }
        };
        if let Outcome::Unmoved(Unmoved::NotMoving | Unmoved::NotBegun | Unmoved::Gone | Unmoved::Reachable) = outcome {
            // The stores were behind: another process has finished the move, the Service was deleted, or its endpoints
            // became ready, which the next look reports.
            return tracing::debug!(namespace, name, %outcome, "nothing to move");
        }
        self.metrics.moved(match outcome {
            Outcome::Moved { .. } => MoveResult::Moved,
            Outcome::Kept { .. } => MoveResult::Kept,
            Outcome::Elsewhere { .. } => MoveResult::Unmanaged,
            Outcome::Overtaken { .. } => MoveResult::UserChanged,
            Outcome::Unmoved(_) => MoveResult::Nothing,
        });
        if outcome.is_warning() {
            tracing::warn!(namespace, name, %outcome, "move");
        } else {
            tracing::info!(namespace, name, %outcome, "move");
        }
        let (warning, reason) = (outcome.is_warning(), outcome.reason());
        if is_reported() {
            self.publish_event(id, EventContent { uid, warning, reason, note: outcome.to_string() }).await;
        }
    }

    /// Writes an Event about a Service. It answers the request of an administrator, if there is one.
    pub(super) async fn publish_event(&self, id: &ServiceKey, content: EventContent<'_>) {
        publish_service_event(&self.client, id, "Move", content, self.requests.considered(id)).await;
    }

    /// Tells the administrator who requested a move why nothing was done. Without a request, nothing is written.
    pub(super) async fn answer_requester(&self, id: &ServiceKey, service: &Value, note: &str) {
        if self.requests.considered(id).is_none() {
            return;
        }
        let (uid, note) = (text(service, &["metadata", "uid"]), note.to_owned());
        self.publish_event(id, EventContent { uid, warning: false, reason: "AddressNotMoved", note }).await;
    }

    pub(super) async fn report_brake(
        &self,
        id: &ServiceKey,
        service: &Value,
        misplaced: &Misplaced,
        brake: Brake,
    ) -> Next {
        let (detail, next) = match brake {
            Brake::Cooldown { until } => {
                self.remember(id, StayReason::Brake, &misplaced.why());
                return Next::After(until.saturating_duration_since(Instant::now()));
            }
            Brake::Rate { until } => {
                let next = Next::After(until.saturating_duration_since(Instant::now()));
                ("many Services were moved in the last minute: it waits for its turn", next)
            }
            Brake::Settings(why) => {
                self.remove_request_and_annotation(id, service).await;
                let detail = match why {
                    Why::Ready => {
                        "the settings changed, and the Service has ready endpoints: run `clusterip move --seamless`"
                    }
                    Why::Namespace => {
                        "the settings changed for a large part of its namespace: it waits for `clusterip move`"
                    }
                    Why::Cluster => {
                        "the settings changed for a large part of the cluster: it waits for `clusterip move`"
                    }
                };
                (detail, Next::Change)
            }
        };
        self.report(id, misplaced, StayReason::Brake, detail).await;
        next
    }

    /// Reports a Service that stays where it is. The same report is repeated only if a user asked for the move. Metrics
    /// and audits show what [`ReportLimit`] keeps out of the log and the Events.
    async fn report(&self, id: &ServiceKey, misplaced: &Misplaced, reason: StayReason, detail: &str) {
        let note = format!("{}; it stays: {detail}", misplaced.why());
        let is_asked = match misplaced.asked_by {
            AskedBy::Controller => false,
            AskedBy::Author => {
                let record = self.evaluator.stores().stored_service(id);
                record.is_some_and(|record| self.found.lock().reports.answers(id, &record, Instant::now()))
            }
            AskedBy::Administrator => true,
        };
        if self.must_report(id, reason, &note, is_asked) {
            tracing::warn!(
                namespace = id.namespace,
                name = id.name,
                reason = reason.as_str(),
                detail = note,
                "misplaced"
            );
            let content = EventContent { uid: &misplaced.uid, warning: true, reason: "AddressMisplaced", note };
            self.publish_event(id, content).await;
        }
    }

    /// Stores why a Service stays. Returns whether to report it: a user asked for the move, or the reason is new and
    /// [`ReportLimit`] allows a report. A new reason that may not be reported yet counts as new again at the next look.
    pub(super) fn must_report(&self, id: &ServiceKey, reason: StayReason, text: &str, is_asked: bool) -> bool {
        let (is_new, may) = {
            let mut found = self.found.lock();
            let is_new = found.misplaced.get(id).is_none_or(|(before, said)| *before != reason || said != text);
            (is_new, is_new && found.reports.take(id, Instant::now()))
        };
        self.remember(id, reason, if is_new && !may && !is_asked { "" } else { text });
        may || is_asked
    }

    /// Stores why a Service stays, which needs no report.
    pub(super) fn remember(&self, id: &ServiceKey, reason: StayReason, text: &str) {
        let mut found = self.found.lock();
        found.misplaced.insert(id.clone(), (reason, text.to_owned()));
        self.count(&found);
    }

    /// The Services of [`Self::noted`], and those that were reported or too large since this process leads.
    pub fn remembered(&self) -> BTreeSet<ServiceKey> {
        let mut remembered = self.noted();
        let found = self.found.lock();
        remembered.extend(found.reports.0.keys().chain(found.large.keys()).cloned());
        remembered
    }

    /// The Services about which something is noted: a finding, an unfinished move, a request, or a wait for consent.
    pub fn noted(&self) -> BTreeSet<ServiceKey> {
        let mut noted: BTreeSet<ServiceKey> = self.requests.services().into_iter().collect();
        noted.extend(self.brakes.lock().waiting.keys().cloned());
        noted.extend(self.mover.unfinished().services());
        let found = self.found.lock();
        noted.extend(found.misplaced.keys().chain(found.unmatched.keys()).chain(found.failures.keys()).cloned());
        noted
    }

    /// Removes all that is known of a Service that is gone.
    pub(super) fn forget_service(&self, id: &ServiceKey) {
        self.clear_findings(id);
        let mut found = self.found.lock();
        found.failures.remove(id);
        found.large.remove(id);
        found.reports.0.remove(id);
    }

    /// Removes the findings about a Service that is in place or gone, and stops its wait for consent.
    pub(super) fn clear_findings(&self, id: &ServiceKey) {
        self.brakes.lock().stop_waiting(id);
        let mut found = self.found.lock();
        found.unmatched.remove(id);
        found.silent.remove(id);
        if found.misplaced.remove(id).is_some() {
            self.count(&found);
        }
    }

    pub(super) fn count(&self, found: &Found) {
        let mut counts = BTreeMap::new();
        for (reason, _) in found.misplaced.values() {
            *counts.entry(*reason).or_default() += 1;
        }
        self.metrics.misplaced(&counts);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_cluster::lookups::snapshot::Snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn author_gets_one_answer_for_each_version_of_the_service() {
        let (mut limit, now) = (ReportLimit::default(), Instant::now());
        let id = ServiceKey::new("shop", "web");
        let mut snapshot = Snapshot::default();
        let mut version = |label: &str| {
            let metadata = json!({"namespace": "shop", "name": "web", "labels": {"version": label}});
            snapshot.insert(&json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}));
            snapshot.service(&id).cloned().unwrap()
        };
        for record in [version("1"), version("2")] {
            let answers = [0; 3].map(|_| limit.answers(&id, &record, now));
            assert_eq!(answers, [true, false, false]);
        }
        assert!(limit.take(&id, now), "other reports are not counted");
    }

    #[test]
    fn reports_about_a_service_are_limited() {
        let (mut limit, begin) = (ReportLimit::default(), Instant::now());
        let id = |name: &str| ServiceKey { namespace: "shop".to_owned(), name: name.to_owned() };
        let mut written = |name: &str, minutes: u64| {
            let now = begin + Duration::from_secs(60 * minutes);
            (0..100).filter(|_| limit.take(&id(name), now)).count()
        };
        assert_eq!([written("web", 0), written("web", 14), written("web", 15), written("web", 50)], [4, 0, 1, 2]);
        assert_eq!(written("api", 50), 4, "another Service");
        assert_eq!(written("web", 1000), 4);
    }
}
