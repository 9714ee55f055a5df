//! Moves one Service: whether it may move, where to, and the move itself. Finishes moves that were left unfinished, and
//! handles Services that look half moved.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clusterip_cluster::background;
use clusterip_cluster::connect::is_answer_too_large;
use clusterip_cluster::evaluator::Evaluation;
use clusterip_cluster::object::text;
use clusterip_cluster::snapshot::{StoredService, addresses};
use clusterip_cluster::watch::partial_object::PartialObject;
use clusterip_core::annotations::{Move, looks_half_moved};
use clusterip_core::service::may_be_set_by_hand;
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::claims::Owner;
use clusterip_moves::journal::{Journal, SeamlessOptions};
use clusterip_moves::outcome::{Outcome, Refusal, Size, Unmoved};
use clusterip_moves::temporary::looks_temporary;
use serde_json::Value;

use super::{MAX_PAUSE, Next, Reconciler, Shown, UNFINISHED, unreadable};
use crate::leader::event_recorder::EventContent;
use crate::services::misplaced::{self, AskedBy, Misplaced, NoTarget};
use crate::services::mover::targets::Alternatives;
use crate::services::mover::{MoveError, MoveOrder};
use crate::services::service_metrics::StayReason;

#[derive(Clone, Debug, PartialEq)]
pub enum Movable {
    /// The Service may be moved. Contains the Service as it was read.
    Yes(Box<Value>),
    /// The Service is not as the stores showed it.
    Changed,
    SetByHand,
    /// The Service is larger than those that move now. Contains its size; `None` if it is too large to move.
    Larger(Option<Size>),
}

impl Reconciler {
    /// Reserves addresses for a Service that moves, and returns them with the evaluation that reserved them.
    pub async fn reserve_targets(
        self: &Arc<Self>,
        service: Arc<StoredService>,
    ) -> Result<(Vec<IpAddr>, Box<Evaluation>), NoTarget> {
        let (this, namespace) = (Arc::clone(self), service.key().namespace.clone());
        let reserve = move || misplaced::reserve_targets(&this.evaluator, &service);
        let (to, evaluation) =
            background::run(&namespace, reserve).await.map_err(|error| NoTarget::Unknown(error.to_string()))??;
        Ok((to, Box::new(evaluation)))
    }

    /// Reads a misplaced Service from the API server, and tells whether it may be moved, if it is not larger than `size`.
    pub async fn movable(&self, id: &ServiceKey, misplaced: &Misplaced, size: Size) -> Result<Movable, kube::Error> {
        let live = match self.live(id).await {
            Ok(Some(live)) => live,
            Ok(None) => return Ok(movable(None, misplaced)),
            Err(error) if is_answer_too_large(&error) => return Ok(Movable::Larger(None)),
            Err(error) => return Err(error),
        };
        match Size::of(live.len()) {
            Some(own) if own <= size => {
                Ok(movable(Some(serde_json::from_slice(&live).map_err(kube::Error::SerdeError)?), misplaced))
            }
            own => Ok(Movable::Larger(own)),
        }
    }

    /// As [`Self::movable`], and notes what this version of the Service need not be read again for.
    pub(super) async fn read(
        &self,
        id: &ServiceKey,
        record: &Arc<StoredService>,
        misplaced: &Misplaced,
        size: Size,
    ) -> Result<Movable, kube::Error> {
        let read = self.movable(id, misplaced, size).await;
        match read {
            Ok(Movable::Changed) => self.note(id, record, Shown::Changed),
            Ok(Movable::Larger(own)) => {
                self.note(id, record, if own.is_some() { Shown::Large } else { Shown::TooLarge })
            }
            _ => {}
        }
        read
    }

    /// Moves a misplaced Service, as [`Self::movable`] read it, to the addresses that `evaluation` has reserved. A
    /// seamless move, and one that ends with an error, still has to be [finished](Self::finish).
    pub async fn carry_out(
        &self,
        id: &ServiceKey,
        live: Value,
        misplaced: &Misplaced,
        (to, evaluation, seamless): (Vec<IpAddr>, Box<Evaluation>, Option<SeamlessOptions>),
        size: Size,
    ) -> Result<Outcome, MoveError> {
        let reason = evaluation.decision.note.clone().filter(|note| !note.is_empty());
        evaluation.commit(&to);
        // The Service may have to go back to its old address as long as the move lasts.
        let owner = Owner::new(&id.namespace, &id.name, "");
        misplaced.from.iter().for_each(|address| self.evaluator.reserve_chosen_by_hand(*address, &owner));
        // What the stores keep of a Service is small.
        let stored = self.evaluator.stores().stored_service(id);
        let stored = stored.unwrap_or_else(|| Arc::new(StoredService::read(&live)));
        let targets = Alternatives::new(&self.evaluator, stored);
        let order = MoveOrder {
            id: id.clone(),
            uid: misplaced.uid.clone(),
            addresses: to.clone(),
            why: misplaced.why.clone(),
            reason,
            load_balancers: self.allowed.load_balancers,
            seamless,
            interrupts: self.allowed.ready || misplaced.asked_by != AskedBy::Controller,
        };
        let ended = self.mover.up_to(size).start(&order, Some(live), &targets).await;
        // Addresses that the Service got stay reserved until the stores show them. After a failure all stay reserved
        // for a while, because the Service might have got any of them.
        if let Ok(outcome) = &ended {
            let got = if let Outcome::Moved { to, .. } = outcome { to.as_slice() } else { &[] };
            let reserved = to.into_iter().chain(misplaced.from.clone());
            let unused: Vec<IpAddr> = reserved.filter(|address| !got.contains(address)).collect();
            self.evaluator.ledger().release(&unused, &owner);
        }
        self.report_outcome(id, &misplaced.uid, &ended, size).await;
        ended
    }

    /// Whether a Service is a temporary one of a seamless move. Its name, which a tenant can choose, does not tell.
    pub fn is_temporary(&self, service: &StoredService) -> bool {
        let key = service.key();
        looks_temporary(&key.name, |key| service.label(key)) && self.mover.unfinished.has_temporary(key)
    }

    /// Waits for the end of the recorded move of the Service with this UID, if there is one.
    pub async fn wait_for_end(&self, uid: &str) -> Result<(), MoveError> {
        let unread = |reason| MoveError::of_record(&format!("the Service with UID {uid}"), &reason);
        while let Some(due) = self.mover.unfinished.due(uid)
            && let Some(journal) = self.mover.records.get(uid, Size::Large).await.map_err(unread)?
        {
            if due <= Instant::now() {
                self.finish(&journal, Size::Large).await?;
            } else {
                drop(journal);
                tokio::time::sleep_until(due.into()).await;
            }
        }
        Ok(())
    }

    pub async fn finish(&self, journal: &Journal, size: Size) -> Result<Outcome, MoveError> {
        let id = ServiceKey::new(journal.namespace.clone(), journal.name.clone());
        let live = self.live(&id).await.ok().flatten();
        let targets = {
            // A Service that can't be read now may be readable when its target is chosen.
            let stored = || self.evaluator.stores().service(&id);
            let live: Option<PartialObject> = live.and_then(|live| serde_json::from_slice(&live).ok());
            let known = live.map(|live| live.object).or_else(stored).unwrap_or_default();
            Alternatives::new(&self.evaluator, Arc::new(StoredService::read(&misplaced::as_it_was(known, journal))))
        };
        let ended = self.mover.up_to(size).resume(journal, &targets).await;
        self.report_outcome(&id, &journal.uid, &ended, size).await;
        ended
    }

    /// Lists the recorded moves, and returns their Services, each with its UID. Other leaders left these moves
    /// unfinished, or this process knows them already. Each move is finished when its Service is reconciled.
    pub async fn find_unfinished_moves(&self) -> Result<Vec<(ServiceKey, String)>, Refusal> {
        let recorded = self.mover.records.list().await?;
        recorded.iter().for_each(|(id, uid)| self.mover.unfinished.add(uid, id, false));
        Ok(recorded)
    }

    /// When to look again at the Service with this UID: not later than its move goes on, if one is unfinished.
    pub(super) fn resume_later(&self, uid: &str, next: Next) -> Next {
        self.mover.unfinished.due(uid).map_or(next, |due| next.within(due.saturating_duration_since(Instant::now())))
    }

    /// Finishes a move that another leader or this one left unfinished. Then the Service is reconciled as any other,
    /// and once more after the returned time, when the move goes on. An error says when a move is tried again.
    pub(super) async fn finish_left(&self, id: &ServiceKey, size: Size) -> Result<Option<Duration>, Next> {
        let unfinished = &self.mover.unfinished;
        let Some((uid, due)) = unfinished.of(id) else { return Ok(None) };
        self.requests.consider(id, &uid);
        // The grace period ends with the Service, and its record must not stay long.
        let is_gone = self.stored_uid(id).as_ref() != Some(&uid);
        if is_gone && let Some(known) = self.known.lock().get_mut(id) {
            known.paused_until = known.paused_until.min(Some(Instant::now() + MAX_PAUSE));
        }
        if let Some(rest) = self.remaining_pause(id) {
            self.answer_request(id).await;
            return Err(Next::After(rest));
        }
        let rest = due.saturating_duration_since(Instant::now());
        if !rest.is_zero() && !is_gone {
            return Ok(Some(rest));
        }
        let recorded = match self.mover.records.get(&uid, size).await {
            // Its move has not begun: it begins only after the answer to the creation of the record was read.
            Err(Refusal::TooLarge(_)) if is_gone && size == Size::Large => {
                self.mover.records.delete(&uid, None).await.map(|()| None)
            }
            read => read,
        };
        let recorded = match recorded {
            Ok(recorded) => recorded,
            Err(refusal) => return Err(self.unread_record(id, &refusal, size).await),
        };
        if let Some(journal) = recorded {
            let ended = self.finish(&journal, size).await;
            if ended.is_err() {
                let next = self.next_after(id, &ended, size);
                if next != Next::AsLarge {
                    self.answer_request(id).await;
                }
                return Err(next);
            }
        } else {
            unfinished.has_no_record(&uid);
        }
        let due = unfinished.due(&uid);
        let rest = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
        // The Service itself may move now, but only after others whose temporary Services wait for this place.
        match (size, due) {
            // The move of a Service that is gone would go on at once.
            (Size::Large, _) if is_gone => return Err(Next::After(rest)),
            (Size::Large, None) => return Err(Next::AsLarge),
            // A usual look notes when the move goes on.
            (Size::Large, Some(_)) => return Err(Next::After(Duration::ZERO)),
            (Size::Usual, None) => return Ok(None),
            (Size::Usual, Some(_)) => {}
        }
        // A move of another Service of this name would take the place of this one, which then would never end.
        let has_successor = self.stored_uid(id).is_some_and(|stored| stored != uid);
        if has_successor { Err(Next::After(rest)) } else { Ok(Some(rest)) }
    }

    /// When a record that can't be read or deleted is tried again: at growing intervals if that was refused.
    async fn unread_record(&self, id: &ServiceKey, refusal: &Refusal, size: Size) -> Next {
        if matches!(refusal, Refusal::TooLarge(_)) && size < Size::Large {
            return Next::AsLarge;
        }
        tracing::warn!(namespace = id.namespace, name = id.name, error = %refusal, "the record of a move can't be read");
        if matches!(refusal, Refusal::Trouble(_)) {
            return Next::After(UNFINISHED);
        }
        self.answer_request(id).await;
        self.after_failure(id)
    }

    fn stored_uid(&self, id: &ServiceKey) -> Option<String> {
        Some(self.evaluator.stores().stored_service(id)?.uid().into_owned())
    }

    /// Handles a Service that looks half moved. If its move is recorded, the move is finished. Otherwise the Service
    /// is left alone, because every user who may write the Service can make it look half moved.
    pub(super) async fn half_moved(&self, id: &ServiceKey, service: &StoredService, size: Size) -> Next {
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
        match self.mover.records.get(&uid, size).await {
            Ok(Some(journal)) => {
                // A seamless move that waits for the end of its grace period has prevented its own late releases, so
                // another client has released the address again.
                let now = Instant::now();
                let is_resting = self.mover.unfinished.due(&uid).is_some_and(|due| due > now);
                if is_resting
                    && journal.seamless.is_some()
                    && let Err(brake) = self.brakes.lock().take(id, AskedBy::Controller, now)
                {
                    // At the end of the grace period, it gets an address anyway.
                    return Next::of(brake);
                }
                let ended = self.finish(&journal, size).await;
                let next = self.next_after(id, &ended, size);
                self.resume_later(&journal.uid, next)
            }
            Ok(None) => {
                let outcome = Outcome::Unmoved(Unmoved::NotRecorded);
                let note = outcome.to_string();
                let is_asked = self.requests.considered(id).is_some();
                if self.must_report(id, StayReason::NotRecorded, &note, is_asked) {
                    tracing::warn!(namespace = id.namespace, name = id.name, %outcome, "move");
                    let content = EventContent { uid: &service.uid(), warning: true, reason: outcome.reason(), note };
                    self.publish_event(id, content).await;
                }
                Next::Change
            }
            Err(refusal) => self.unread_record(id, &refusal, size).await,
        }
    }
}

/// Whether a misplaced Service may be moved, as the API server has it now.
fn movable(live: Option<Value>, misplaced: &Misplaced) -> Movable {
    let Some(live) = live else { return Movable::Changed };
    let is_other = text(&live, &["metadata", "uid"]) != misplaced.uid || addresses(&live) != misplaced.from;
    // The stores may still show the annotation of the author after the controller has answered and removed it.
    let is_answered = misplaced.asked_by == AskedBy::Author && Move::of(&live) != Some(Move::Now);
    if is_other || is_answered {
        Movable::Changed
    } else if may_be_set_by_hand(&live) {
        Movable::SetByHand
    } else {
        Movable::Yes(Box::new(live))
    }
}

#[cfg(test)]
mod tests {
    use clusterip_core::annotations::MOVE_ANNOTATION;
    use serde_json::json;

    use super::*;
    use crate::services::misplaced::Impact;

    #[test]
    fn service_that_changed_since_the_stores_saw_it_is_not_moved() {
        struct Case {
            name: &'static str,
            asked_by: AskedBy,
            live: Option<Value>,
            expected: fn(Value) -> Movable,
        }
        let service = |uid: &str, address: &str, annotations: Value, managers: Value| {
            Some(json!({
                "metadata": {"uid": uid, "annotations": annotations, "managedFields": managers},
                "spec": {"clusterIP": address, "clusterIPs": [address]},
            }))
        };
        let by_hand =
            json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}]);
        let by_allocator = || json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]);
        let as_shown = || service("uid-1", "10.0.0.1", json!({}), by_allocator());
        let annotated = || service("uid-1", "10.0.0.1", json!({MOVE_ANNOTATION: "now"}), by_allocator());
        let yes: fn(Value) -> Movable = |live| Movable::Yes(Box::new(live));
        let changed: fn(Value) -> Movable = |_| Movable::Changed;
        let by_controller = |name, live, expected| Case { name, asked_by: AskedBy::Controller, live, expected };
        let by = |asked_by, name, live, expected| Case { asked_by, ..by_controller(name, live, expected) };
        let other = |uid: &str, address: &str| service(uid, address, json!({}), by_allocator());
        let cases = [
            by_controller("as shown", as_shown(), yes),
            by_controller("deleted", None, changed),
            by_controller("another Service of this name", other("uid-2", "10.0.0.1"), changed),
            by_controller("another address", other("uid-1", "10.0.0.2"), changed),
            by_controller("set by hand", service("uid-1", "10.0.0.1", json!({}), by_hand), |_| Movable::SetByHand),
            by_controller("an annotation that the stores have not seen", annotated(), yes),
            by(AskedBy::Author, "the author's annotation", annotated(), yes),
            by(AskedBy::Author, "the annotation, removed before the stores have seen it", as_shown(), changed),
            by(AskedBy::Administrator, "a request", as_shown(), yes),
        ];
        for Case { name, asked_by, live, expected } in cases {
            let misplaced = Misplaced {
                uid: "uid-1".to_owned(),
                from: vec![IpAddr::from([10, 0, 0, 1])],
                why: String::new(),
                unmatched: Vec::new(),
                asked_by,
                impact: Impact::Unnoticed,
                stays: None,
            };
            assert_eq!(movable(live.clone(), &misplaced), expected(live.unwrap_or_default()), "{name}");
        }
    }
}
