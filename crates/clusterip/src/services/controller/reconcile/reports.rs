//! Reports moves, and the Services that stay where they are: in the log, as Events and as metrics.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clusterip_cluster::snapshot::StoredService;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::outcome::{Outcome, Size, Unmoved};

use super::{Known, Next, REPORTED, Reconciler, WATCHED, outgrows};
use crate::leader::event_recorder::{self, EventContent, event_about};
use crate::services::controller::brakes::{Brake, Why};
use crate::services::misplaced::{AskedBy, Misplaced};
use crate::services::mover::MoveError;
use crate::services::service_metrics::{MoveResult, StayReason};

/// How many reports about one Service may be written at once, and after which time one more may be written.
const REPORTS_AT_ONCE: u32 = 4;
const REPORTS_EVERY: Duration = Duration::from_secs(15 * 60);
/// How many Events are written at once beside other work.
pub(super) const EVENTS_AT_ONCE: u32 = 8;

impl Known {
    /// Whether the author of this Service, which has the annotation that asks for a move, gets an answer: one for each
    /// version of the Service, because the annotation stays if it can't be removed.
    fn answers(&mut self, record: &Arc<StoredService>) -> bool {
        let is_new = self.answered.as_ptr() != Arc::as_ptr(record);
        self.answered = Arc::downgrade(record);
        is_new
    }

    /// Whether one more report about this Service, which no user asked for, may be written. Counts it if so. With one
    /// write of a workload, a tenant can make all of its Services misplaced, and with the next write put all of them in
    /// place again. Each Event takes storage of the API server for an hour.
    fn takes_report(&mut self, now: Instant) -> bool {
        let next = self.reports_paid.map_or(now, |paid| now.max(paid)) + REPORTS_EVERY;
        let may = next <= now + REPORTS_EVERY * REPORTS_AT_ONCE;
        if may {
            self.reports_paid = Some(next);
        }
        may
    }
}

impl Reconciler {
    /// Reports that a misplaced Service stays where it is, and answers the request or annotation that asks for a move.
    pub(super) async fn report_stay(
        &self,
        id: &ServiceKey,
        record: &Arc<StoredService>,
        misplaced: &Misplaced,
        reason: StayReason,
        detail: &str,
    ) -> Next {
        self.report(id, misplaced, reason, detail).await;
        self.remove_request_and_annotation(id, record).await;
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
        let takes_report = || self.known.lock().entry(id.clone()).or_default().takes_report(Instant::now());
        let is_reported = || takes_report() || self.requests.considered(id).is_some();
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

    /// Writes an Event about a Service. If it answers the request of an administrator, or if [`EVENTS_AT_ONCE`] others are
    /// being written, this function waits until it is written.
    pub(super) async fn publish_event(&self, id: &ServiceKey, content: EventContent<'_>) {
        let (kind, about) = (("v1", "Service"), (Some(&*id.namespace), &*id.name));
        let request = self.requests.considered(id);
        // `clusterip move` reads the Event as soon as its request is deleted, so the Event must exist before.
        let place = request.is_none().then(|| Arc::clone(&self.event_places).try_acquire_owned());
        let event = event_about(kind, about, "Move", content, request);
        if let Some(Ok(place)) = place {
            let client = self.client.clone();
            tokio::spawn(async move {
                event_recorder::write(&client, &event).await;
                drop(place);
            });
        } else {
            event_recorder::write(&self.client, &event).await;
        }
    }

    /// Waits until the Events so far are written.
    pub async fn wait_for_events(&self) {
        let _ = self.event_places.acquire_many(EVENTS_AT_ONCE).await;
    }

    pub(super) async fn report_brake(
        &self,
        id: &ServiceKey,
        record: &Arc<StoredService>,
        misplaced: &Misplaced,
        brake: Brake,
    ) -> Next {
        let next = Next::of(brake);
        let detail = match brake {
            Brake::Cooldown { .. } => {
                self.remember(id, StayReason::Brake, &misplaced.why);
                return next;
            }
            Brake::Rate { .. } => "many Services were moved in the last minute: it waits for its turn",
            Brake::Settings(why) => {
                self.remove_request_and_annotation(id, record).await;
                match why {
                    Why::Ready => {
                        "the settings changed, and the Service has ready endpoints: run `clusterip move --seamless`"
                    }
                    Why::Namespace => {
                        "the settings changed for a large part of its namespace: it waits for `clusterip move`"
                    }
                    Why::Cluster => {
                        "the settings changed for a large part of the cluster: it waits for `clusterip move`"
                    }
                }
            }
        };
        self.report(id, misplaced, StayReason::Brake, detail).await;
        next
    }

    /// Reports a Service that stays where it is. The same report is repeated only if a user asked for the move. Metrics
    /// and audits show what [`Known::takes_report`] keeps out of the log and the Events.
    async fn report(&self, id: &ServiceKey, misplaced: &Misplaced, reason: StayReason, detail: &str) {
        let note = format!("{}; it stays: {detail}", misplaced.why);
        let is_asked = match misplaced.asked_by {
            AskedBy::Controller => false,
            AskedBy::Author => {
                let record = self.evaluator.stores().stored_service(id);
                record.is_some_and(|record| self.known.lock().entry(id.clone()).or_default().answers(&record))
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
    /// [`Known::takes_report`] allows a report. A new reason that may not be reported yet counts as new again at the next look.
    pub(super) fn must_report(&self, id: &ServiceKey, reason: StayReason, text: &str, is_asked: bool) -> bool {
        let (is_new, may) = {
            let mut known = self.known.lock();
            let known = known.entry(id.clone()).or_default();
            let is_new = known.stays.as_ref().is_none_or(|(before, said)| *before != reason || said != text);
            (is_new, is_new && known.takes_report(Instant::now()))
        };
        self.remember(id, reason, if is_new && !may && !is_asked { "" } else { text });
        may || is_asked
    }

    /// Stores why a Service stays, which needs no report.
    pub(super) fn remember(&self, id: &ServiceKey, reason: StayReason, text: &str) {
        self.brakes.lock().stays(id, reason);
        let mut known = self.known.lock();
        let before = known.entry(id.clone()).or_default().stays.replace((reason, text.to_owned()));
        self.metrics.stays(before.map(|(reason, _)| reason), Some(reason));
    }

    /// The Services of [`Self::noted`], and those that were reported or too large since this process leads.
    pub fn remembered(&self) -> BTreeSet<ServiceKey> {
        let mut remembered = self.noted();
        remembered.extend(self.known.lock().keys().cloned());
        remembered
    }

    /// The Services about which something is noted: a finding, an unfinished move, a request, or a wait for consent.
    pub fn noted(&self) -> BTreeSet<ServiceKey> {
        let mut noted = self.which(|known| known.stays.is_some() || !known.unmatched.is_empty() || known.failures > 0);
        noted.extend(self.requests.services());
        noted.extend(self.brakes.lock().waiting.keys().cloned());
        noted.extend(self.mover.unfinished.services());
        noted
    }

    pub(super) fn forget_service(&self, id: &ServiceKey) {
        self.clear_findings(id);
        self.known.lock().remove(id);
    }

    /// Removes the findings about a Service that is in place or gone, and stops its wait for consent.
    pub(super) fn clear_findings(&self, id: &ServiceKey) {
        self.brakes.lock().waiting.remove(id);
        let mut all = self.known.lock();
        let Some(known) = all.get_mut(id) else { return };
        (known.unmatched, known.silent_since) = (Vec::new(), None);
        if let Some((reason, _)) = known.stays.take() {
            self.metrics.stays(Some(reason), None);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_cluster::snapshot::Snapshot;
    use serde_json::json;

    use super::*;

    #[test]
    fn author_gets_one_answer_for_each_version_of_the_service() {
        let mut known = Known::default();
        let id = ServiceKey::new("shop", "web");
        let mut snapshot = Snapshot::default();
        let mut version = |label: &str| {
            let metadata = json!({"namespace": "shop", "name": "web", "labels": {"version": label}});
            snapshot.insert(&json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata}));
            snapshot.service(&id).cloned().unwrap()
        };
        for record in [version("1"), version("2")] {
            let answers = [0; 3].map(|_| known.answers(&record));
            assert_eq!(answers, [true, false, false]);
        }
        assert!(known.takes_report(Instant::now()), "other reports are not counted");
    }

    #[test]
    fn reports_about_a_service_are_limited() {
        let (mut known, begin) = (Known::default(), Instant::now());
        let mut written = |minutes: u64| {
            let now = begin + Duration::from_secs(60 * minutes);
            (0..100).filter(|_| known.takes_report(now)).count()
        };
        assert_eq!([written(0), written(14), written(15), written(50), written(1000)], [4, 0, 1, 2, 4]);
    }
}
