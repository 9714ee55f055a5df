//! Moves one Service: whether it may move, where to, and the move itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use clusterip_cluster::background;
use clusterip_cluster::connect::is_answer_too_large;
use clusterip_cluster::evaluator::Evaluation;
use clusterip_cluster::lookups::snapshot::addresses;
use clusterip_cluster::object::{namespace, text};
use clusterip_core::annotations::Move;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::may_be_set_by_hand;
use clusterip_failover::claims::Owner;
use clusterip_moves::journal::{Journal, SeamlessOptions};
use clusterip_moves::outcome::{Outcome, Size};
use clusterip_moves::temporary::looks_temporary;
use serde_json::Value;

use super::{Movable, Reconciler};
use crate::services::misplaced::{self, AskedBy, Misplaced, NoTarget};
use crate::services::mover::targets::Alternatives;
use crate::services::mover::{MoveError, MoveOrder};

impl Reconciler {
    /// Reserves addresses for a Service that moves, and returns them with the evaluation that reserved them.
    pub async fn reserve_targets(self: &Arc<Self>, service: Value) -> Result<(Vec<IpAddr>, Box<Evaluation>), NoTarget> {
        let (this, namespace) = (Arc::clone(self), namespace(&service).to_owned());
        let reserve = move || misplaced::reserve_targets(&this.evaluator, &service);
        let (to, evaluation) =
            background::run(&namespace, reserve).await.map_err(|error| NoTarget::Unknown(error.to_string()))??;
        Ok((to, Box::new(evaluation)))
    }

    /// Reads a misplaced Service from the API server, and tells whether it may be moved, if it is not larger than `size`.
    pub async fn movable(&self, id: &ServiceKey, misplaced: &Misplaced, size: Size) -> Result<Movable, kube::Error> {
        let live = match self.live(id).await {
            Err(error) if is_answer_too_large(&error) => return Ok(Movable::Larger(None)),
            live => live?,
        };
        match live.map(|live| (Size::of(live.len()), live)) {
            Some((own, _)) if own.is_none_or(|own| own > size) => Ok(Movable::Larger(own)),
            live => {
                let live = live.map(|(_, live)| serde_json::from_slice(&live)).transpose();
                Ok(movable(live.map_err(kube::Error::SerdeError)?, misplaced))
            }
        }
    }

    /// Moves a misplaced Service to the addresses that `evaluation` has reserved, and reports the outcome. `live` is
    /// the Service as [`Self::movable`] read it. A seamless move still has to be [finished](Self::finish) after its
    /// grace period, and so has a move that ends with an error.
    pub async fn carry_out(
        &self,
        live: Value,
        misplaced: &Misplaced,
        (to, evaluation, seamless): (Vec<IpAddr>, Box<Evaluation>, Option<SeamlessOptions>),
        size: Size,
    ) -> Result<Outcome, MoveError> {
        let reason = evaluation.decision.note.clone().filter(|note| !note.is_empty());
        evaluation.commit(&to);
        // The Service may have to go back to its old address as long as the move lasts.
        let owner = Owner::new(&misplaced.id.namespace, &misplaced.id.name, "");
        misplaced.from.iter().for_each(|address| self.evaluator.reserve_chosen_by_hand(*address, &owner));
        // What the stores keep of a Service is small.
        let stored = self.evaluator.stores().service(&misplaced.id);
        let targets = Alternatives::new(&self.evaluator, stored.as_ref().unwrap_or(&live));
        let order = MoveOrder {
            id: misplaced.id.clone(),
            uid: misplaced.uid.clone(),
            addresses: to.clone(),
            why: misplaced.why(),
            reason,
            load_balancers: self.allowed.load_balancers,
            seamless,
            interrupts: self.allowed.ready || misplaced.asked_by != AskedBy::Controller,
        };
        let ended = self.mover.up_to(size).start_from(live, &order, &targets).await;
        // Addresses that the Service got stay reserved until the stores show them. After a failure all stay reserved
        // for a while, because the Service might have got any of them.
        let unused: Vec<IpAddr> = match &ended {
            Ok(Outcome::Moved { to: got, .. }) => {
                to.into_iter().chain(misplaced.from.clone()).filter(|address| !got.contains(address)).collect()
            }
            Ok(_) => to.into_iter().chain(misplaced.from.clone()).collect(),
            Err(_) => Vec::new(),
        };
        self.evaluator.ledger().release(&unused, &owner);
        self.report_outcome(&misplaced.id, &misplaced.uid, &ended, size).await;
        ended
    }

    /// Whether a Service is a temporary Service of a seamless move. Its name alone, which a tenant can choose, does not
    /// tell.
    pub fn is_temporary(&self, service: &Value) -> bool {
        looks_temporary(service) && self.mover.unfinished().has_temporary(service)
    }

    /// Waits for the end of the recorded move of the Service with this UID, if there is one.
    pub async fn wait_for_end(&self, uid: &str) -> Result<(), MoveError> {
        let unread = |reason| MoveError::Record(format!("the Service with UID {uid}"), reason);
        while let Some(due) = self.mover.unfinished().due(uid)
            && let Some(journal) = self.mover.records().get(uid).await.map_err(unread)?
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

    /// Finishes a recorded move, and reports the outcome.
    pub async fn finish(&self, journal: &Journal, size: Size) -> Result<Outcome, MoveError> {
        let id = ServiceKey::new(journal.namespace.clone(), journal.name.clone());
        let live = self.live(&id).await.ok().flatten().filter(|live| live.len() <= size.most_read());
        let targets = {
            // A Service that can't be read now may be readable when its target is chosen.
            let stored = || self.evaluator.stores().service(&id);
            let live = live.and_then(|live| serde_json::from_slice(&live).ok()).or_else(stored).unwrap_or_default();
            Alternatives::new(&self.evaluator, &misplaced::as_it_was(&live, journal))
        };
        let ended = self.mover.up_to(size).resume(journal, &targets).await;
        self.report_outcome(&id, &journal.uid, &ended, size).await;
        ended
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
    use crate::services::misplaced::{Handling, Impact};

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
        let now = || json!({MOVE_ANNOTATION: "now"});
        let by_hand =
            json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}]);
        let by_allocator = || json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]);
        let as_shown = || service("uid-1", "10.0.0.1", json!({}), by_allocator());
        let yes: fn(Value) -> Movable = |live| Movable::Yes(Box::new(live));
        let changed: fn(Value) -> Movable = |_| Movable::Changed;
        let cases = [
            Case { name: "as shown", asked_by: AskedBy::Controller, live: as_shown(), expected: yes },
            Case { name: "deleted", asked_by: AskedBy::Controller, live: None, expected: changed },
            Case {
                name: "another Service of this name",
                asked_by: AskedBy::Controller,
                live: service("uid-2", "10.0.0.1", json!({}), by_allocator()),
                expected: changed,
            },
            Case {
                name: "another address",
                asked_by: AskedBy::Controller,
                live: service("uid-1", "10.0.0.2", json!({}), by_allocator()),
                expected: changed,
            },
            Case {
                name: "set by hand",
                asked_by: AskedBy::Controller,
                live: service("uid-1", "10.0.0.1", json!({}), by_hand),
                expected: |_| Movable::SetByHand,
            },
            Case {
                name: "the author's annotation",
                asked_by: AskedBy::Author,
                live: service("uid-1", "10.0.0.1", now(), by_allocator()),
                expected: yes,
            },
            Case {
                name: "the author's annotation, removed before the stores have seen it",
                asked_by: AskedBy::Author,
                live: as_shown(),
                expected: changed,
            },
            Case {
                name: "an annotation that the stores have not seen",
                asked_by: AskedBy::Controller,
                live: service("uid-1", "10.0.0.1", now(), by_allocator()),
                expected: yes,
            },
            Case { name: "a request", asked_by: AskedBy::Administrator, live: as_shown(), expected: yes },
        ];
        for Case { name, asked_by, live, expected } in cases {
            let misplaced = Misplaced {
                id: ServiceKey::new("shop", "web"),
                uid: "uid-1".to_owned(),
                from: vec![IpAddr::from([10, 0, 0, 1])],
                lies_in: Vec::new(),
                pool: Some("linux".to_owned()),
                evidence: String::new(),
                asked_by,
                impact: Impact::Unnoticed,
                handling: Handling::Move,
            };
            assert_eq!(movable(live.clone(), &misplaced), expected(live.unwrap_or_default()), "{name}");
        }
    }
}
