//! Examines all Services at once, at the beginning of a term and after a change of the settings. Only the Services that
//! are not simply in place are reconciled afterwards.

use std::collections::BTreeSet;

use clusterip_core::address_set_by_hand::may_be_set_by_hand;
use clusterip_core::annotations::Move;
use clusterip_core::service_key::ServiceKey;
use clusterip_host::evaluator::EvaluationError;
use serde_json::Value;

use super::reconcile::Reconciler;
use crate::service_placement::{Skip, skip_reason};
use crate::services::misplaced::{self, Inspection, Verdict};

/// What a survey found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The Services to reconcile. All others are in place or ignored, and nothing about them has to be written.
    pub open: Vec<ServiceKey>,
    /// The Services that would move.
    pub misplaced: BTreeSet<ServiceKey>,
    /// How many Services are managed.
    pub managed: usize,
}

impl Survey {
    /// Examines these Services. No address is reserved, because Services are created meanwhile. So if a pool has fewer
    /// free addresses than Services that would move to it, all of them count.
    pub fn of(reconciler: &Reconciler, ids: &[ServiceKey]) -> Self {
        let evaluator = reconciler.evaluator();
        let settings = evaluator.settings();
        let mut survey = Self::default();
        for id in ids {
            let Some(service) = evaluator.stores().service(id) else { continue };
            if reconciler.is_temporary(&service) {
                continue;
            }
            let is_managed = skip_reason(&settings.settings, &service) != Some(Skip::Unmanaged);
            let inspection = misplaced::inspect(evaluator, &service, reconciler.allowed(), None);
            survey.add(id, &service, is_managed, inspection);
        }
        survey
    }

    fn add(
        &mut self,
        id: &ServiceKey,
        service: &Value,
        is_managed: bool,
        inspection: Result<Inspection, EvaluationError>,
    ) {
        // A Service in place may still have the annotation that asks for a move. The reconciler removes it.
        if !matches!(inspection, Ok(Inspection::InPlace)) || Move::of(service) == Some(Move::Now) {
            self.open.push(id.clone());
        }
        let Ok(inspection) = inspection else { return };
        // If exempt or headless Services counted, a tenant could make the share of those that move look small.
        self.managed += usize::from(is_managed);
        // A Service whose address was set by hand never moves. If it counted, a tenant could make all others wait
        // with some of them.
        if let Inspection::Misplaced(found) = inspection
            && found.verdict == Verdict::Move
            && !may_be_set_by_hand(service)
        {
            self.misplaced.insert(id.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use clusterip_core::annotations::MOVE_ANNOTATION;
    use clusterip_host::policy::module::ModuleError;
    use serde_json::json;

    use super::*;
    use crate::services::misplaced::{AskedBy, Misplaced};
    use crate::services::service_metrics::StayReason;

    #[test]
    fn services_in_place_are_not_reconciled() {
        struct Case {
            name: &'static str,
            annotations: Value,
            managers: Value,
            is_managed: bool,
            inspection: Result<Inspection, EvaluationError>,
            is_open: bool,
            would_move: bool,
            counts: bool,
        }
        let misplaced = |verdict: Verdict| {
            Ok(Inspection::Misplaced(Box::new(Misplaced {
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                uid: "uid-1".to_owned(),
                from: Vec::new(),
                lies_in: Vec::new(),
                pool: "linux".to_owned(),
                evidence: String::new(),
                asked_by: AskedBy::Controller,
                verdict,
            })))
        };
        let by_hand =
            json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}]);
        let base = || Case {
            name: "in place",
            annotations: json!({}),
            managers: json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]),
            is_managed: true,
            inspection: Ok(Inspection::InPlace),
            is_open: false,
            would_move: false,
            counts: true,
        };
        let report = Verdict::Report { reason: StayReason::PoolFull, detail: String::new() };
        let failed = EvaluationError::Module(ModuleError::Call("on purpose".to_owned()));
        let cases = [
            base(),
            Case { name: "ignored", is_managed: false, counts: false, ..base() },
            Case {
                name: "in place, and its author asks for a move",
                annotations: json!({MOVE_ANNOTATION: "now"}),
                is_open: true,
                ..base()
            },
            Case {
                name: "no pool matches",
                inspection: Ok(Inspection::Unmatched { pools: vec!["linux".to_owned()] }),
                is_open: true,
                ..base()
            },
            Case { name: "half moved", inspection: Ok(Inspection::HalfMoved), is_open: true, ..base() },
            Case { name: "misplaced", inspection: misplaced(Verdict::Move), is_open: true, would_move: true, ..base() },
            Case { name: "misplaced, and stays", inspection: misplaced(report), is_open: true, ..base() },
            Case {
                name: "misplaced by hand",
                managers: by_hand,
                inspection: misplaced(Verdict::Move),
                is_open: true,
                ..base()
            },
            Case { name: "not examined", inspection: Err(failed), is_open: true, counts: false, ..base() },
        ];
        for Case { name, annotations, managers, is_managed, inspection, is_open, would_move, counts } in cases {
            let id = ServiceKey::new("shop", "web");
            let service = json!({"metadata": {"annotations": annotations, "managedFields": managers}});
            let mut survey = Survey::default();
            survey.add(&id, &service, is_managed, inspection);
            let expected = Survey {
                open: is_open.then(|| id.clone()).into_iter().collect(),
                misplaced: would_move.then(|| id.clone()).into_iter().collect(),
                managed: usize::from(counts),
            };
            assert_eq!(survey, expected, "{name}");
        }
    }
}
