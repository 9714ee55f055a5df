//! Finishes moves that were left unfinished, and handles Services that look half moved.

use std::time::{Duration, Instant};

use clusterip_cluster::object::text;
use clusterip_core::annotations::looks_half_moved;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::outcome::{Outcome, Size, Unmoved};
use serde_json::Value;

use super::{Next, Reconciler, UNFINISHED, unreadable};
use crate::leader::event_recorder::EventContent;
use crate::services::controller::brakes::Brake;
use crate::services::misplaced::AskedBy;
use crate::services::mover::records::RecordError;
use crate::services::service_metrics::StayReason;

/// What to do about a Service after [`Reconciler::finish_left`].
pub(super) enum AfterLeft {
    /// No move is left, or it has ended. The Service is reconciled as any other.
    Reconcile,
    /// The move goes on after this time, or may still begin until then. The Service is reconciled as any other, and once
    /// more after that time.
    LookAgain(Duration),
    /// The move could not be finished. It is tried again.
    TryAgain(Next),
}

impl Reconciler {
    /// Lists the recorded moves, and returns their Services, each with its UID. Other leaders left these moves
    /// unfinished, or this process knows them already. Each move is finished when its Service is reconciled.
    pub async fn find_left_moves(&self) -> Result<Vec<(ServiceKey, String)>, RecordError> {
        let recorded = self.mover.records().list().await?;
        recorded.iter().for_each(|(id, uid)| self.mover.unfinished().add(uid, id, false));
        Ok(recorded)
    }

    /// When to look again at the Service with this UID: not later than its move goes on, if one is unfinished.
    pub(super) fn resume_later(&self, uid: &str, next: Next) -> Next {
        self.mover.unfinished().due(uid).map_or(next, |due| next.within(due.saturating_duration_since(Instant::now())))
    }

    /// Finishes a move that another leader or this one left unfinished.
    pub(super) async fn finish_left(&self, id: &ServiceKey, size: Size) -> AfterLeft {
        let unfinished = self.mover.unfinished();
        let Some((uid, due)) = unfinished.of(id) else { return AfterLeft::Reconcile };
        self.requests.consider(id, &uid);
        if let Some(rest) = self.remaining_pause(id) {
            self.answer_request(id).await;
            return AfterLeft::TryAgain(Next::After(rest));
        }
        let rest = due.saturating_duration_since(Instant::now());
        // The grace period ends with the Service.
        let is_gone = self.stored_uid(id).as_ref() != Some(&uid);
        if !rest.is_zero() && !is_gone {
            return AfterLeft::LookAgain(rest);
        }
        let recorded = match self.mover.up_to(size).records().get(&uid).await {
            Ok(recorded) => recorded,
            Err(error) if error.too_large && size < Size::Large => return AfterLeft::TryAgain(Next::AsLarge),
            // Its move has not begun: it begins only after the answer to the creation of the record was read.
            Err(error) if error.too_large && is_gone => match self.mover.records().delete(&uid).await {
                Ok(()) => None,
                Err(error) => return self.unread_record(id, &error).await,
            },
            Err(error) => return self.unread_record(id, &error).await,
        };
        if let Some(journal) = recorded {
            let ended = self.finish(&journal, size).await;
            if ended.is_err() {
                let next = self.next_after(id, &ended, size);
                if next != Next::AsLarge {
                    self.answer_request(id).await;
                }
                return AfterLeft::TryAgain(next);
            }
        } else {
            unfinished.has_no_record(&uid);
        }
        let Some(due) = unfinished.due(&uid) else { return AfterLeft::Reconcile };
        let rest = due.saturating_duration_since(Instant::now());
        // A move of another Service of this name would take the place of this one, which then would never end.
        let has_successor = self.stored_uid(id).is_some_and(|stored| stored != uid);
        if has_successor { AfterLeft::TryAgain(Next::After(rest)) } else { AfterLeft::LookAgain(rest) }
    }

    /// The record of a move of this Service can't be read or deleted. That is tried again, at growing intervals if it
    /// was refused.
    async fn unread_record(&self, id: &ServiceKey, error: &RecordError) -> AfterLeft {
        tracing::warn!(namespace = id.namespace, name = id.name, %error, "the record of a move can't be read");
        if error.passing {
            return AfterLeft::TryAgain(Next::After(UNFINISHED));
        }
        self.answer_request(id).await;
        AfterLeft::TryAgain(self.after_failure(id))
    }

    /// The UID of the Service with this name, as the stores show it.
    fn stored_uid(&self, id: &ServiceKey) -> Option<String> {
        let service = self.evaluator.stores().service(id)?;
        Some(text(&service, &["metadata", "uid"]).to_owned())
    }

    /// Handles a Service that looks half moved. If its move is recorded, the move is finished. Otherwise the Service
    /// is left alone, because every user who may write the Service can make it look half moved.
    pub(super) async fn half_moved(&self, id: &ServiceKey, service: &Value, size: Size) -> Next {
        if let Some(rest) = self.remaining_pause(id) {
            return Next::After(rest);
        }
        let uid = match self.live(id).await {
            // The stores were behind.
            Ok(None) => return Next::Change,
            Ok(Some(live)) if live.len() > size.most_read() => return Next::AsLarge,
            Ok(Some(live)) => match serde_json::from_slice(&live).map_err(kube::Error::SerdeError) {
                Ok(live) if !looks_half_moved(&live) => return Next::Change,
                Ok(live) => text(&live, &["metadata", "uid"]).to_owned(),
                Err(error) => return unreadable(id, &error),
            },
            Err(error) => return unreadable(id, &error),
        };
        match self.mover.up_to(size).records().get(&uid).await {
            Ok(Some(journal)) => {
                // A seamless move that waits for the end of its grace period has prevented its own late releases, so
                // another client has released the address again.
                let now = Instant::now();
                let is_resting = self.mover.unfinished().due(&uid).is_some_and(|due| due > now);
                if is_resting
                    && journal.seamless.is_some()
                    && let Err(Brake::Cooldown { until } | Brake::Rate { until }) =
                        self.brakes.lock().take(id, AskedBy::Controller, now)
                {
                    return Next::After(until.saturating_duration_since(now));
                }
                let ended = self.finish(&journal, size).await;
                let next = self.next_after(id, &ended, size);
                self.resume_later(&journal.uid, next)
            }
            Err(error) if error.too_large && size < Size::Large => Next::AsLarge,
            Ok(None) => {
                let outcome = Outcome::Unmoved(Unmoved::NotRecorded);
                let note = outcome.to_string();
                let is_asked = self.requests.considered(id).is_some();
                if self.must_report(id, StayReason::NotRecorded, &note, is_asked) {
                    tracing::warn!(namespace = id.namespace, name = id.name, %outcome, "move");
                    let uid = text(service, &["metadata", "uid"]);
                    self.publish_event(id, EventContent { uid, warning: true, reason: outcome.reason(), note }).await;
                }
                Next::Change
            }
            Err(error) => {
                tracing::warn!(namespace = id.namespace, name = id.name, %error, "the record of a move can't be read");
                Next::After(UNFINISHED)
            }
        }
    }
}
