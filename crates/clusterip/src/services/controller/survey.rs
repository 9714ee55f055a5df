//! Examines all Services, at the beginning of a term and after a change of the settings. The Services that are in place
//! are not reconciled afterwards.
//!
//! A tenant may have many Services that take long. Therefore a survey runs beside the controller, and in parts, between
//! which other long work gets its turn. It examines each namespace only for a limited time at first, so that the other
//! namespaces need not wait for the rest of a namespace that takes longer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clusterip_cluster::background;
use clusterip_cluster::panics;
use clusterip_cluster::snapshot::StoredService;
use clusterip_core::annotations::Move;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;

use super::brakes::WouldMove;
use super::reconcile::Reconciler;
use crate::service_placement::{Skip, skip_reason};
use crate::services::misplaced::{self, Impact, Inspection};
use crate::services::service_metrics::StayReason;

/// How long Services are examined before other long work gets its turn.
const PART: Duration = Duration::from_millis(50);
/// How long the Services of one namespace are examined in the first round. Each further round takes twice as long.
const FIRST_ROUND: Duration = Duration::from_millis(200);

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The Services to reconcile. All others are in place or ignored, and nothing about them has to be written.
    pub open: Vec<ServiceKey>,
    /// The Services that would move now, each with whether it must wait for the consent of an administrator.
    pub would_move: WouldMove,
    /// How many of the examined Services are managed.
    pub managed: usize,
    /// The Services that are not examined yet. They may be all Services of the cluster, so the keys are not copied.
    pub rest: Vec<Arc<ServiceKey>>,
    /// How many of these are managed.
    pub managed_rest: usize,
    pub rounds: u32,
}

impl Survey {
    pub fn unfinished(&self) -> BTreeSet<String> {
        self.rest.iter().map(|id| id.namespace.clone()).collect()
    }

    /// Examines Services of each namespace, for as long as a namespace may take in this round. If they can't be examined,
    /// they are reconciled. `is_first` is whether no leader has carried out any settings yet.
    pub async fn next_round(mut self, reconciler: Arc<Reconciler>, is_first: bool) -> Self {
        let most = FIRST_ROUND * 2_u32.saturating_pow(self.rounds.min(16));
        self.rounds += 1;
        self.managed_rest = 0;
        let mut namespaces: BTreeMap<String, Vec<Arc<ServiceKey>>> = BTreeMap::new();
        for id in std::mem::take(&mut self.rest) {
            namespaces.entry(id.namespace.clone()).or_default().push(id);
        }
        for ids in namespaces.into_values() {
            let (begin, ids, mut examined) = (Instant::now(), Arc::<[_]>::from(ids), 0);
            while examined < ids.len() && begin.elapsed() < most {
                let (reconciler, rest) = (Arc::clone(&reconciler), Arc::clone(&ids));
                match background::run_long(move || Self::of(&reconciler, &rest[examined..], is_first)).await {
                    Ok((part, count)) => {
                        self.open.extend(part.open);
                        self.would_move.extend(part.would_move);
                        self.managed += part.managed;
                        examined += count;
                    }
                    Err(_) => {
                        self.open.extend(ids[examined..].iter().map(|id| ServiceKey::clone(id)));
                        examined = ids.len();
                    }
                }
            }
            if examined < ids.len() {
                self.rest.extend_from_slice(&ids[examined..]);
                let reconciler = Arc::clone(&reconciler);
                let count = move || managed(&reconciler, &ids[examined..]);
                self.managed_rest += background::run_long(count).await.unwrap_or_default();
            }
        }
        self
    }

    /// Examines the first of these Services, as many as it can within [`PART`], and returns their number. No address is
    /// reserved, because Services are created meanwhile. So if a pool has fewer free addresses than Services that would
    /// move to it, all of them count.
    fn of(reconciler: &Reconciler, ids: &[Arc<ServiceKey>], is_first: bool) -> (Self, usize) {
        let evaluator = &reconciler.evaluator;
        let settings = evaluator.settings();
        let (begin, mut survey) = (Instant::now(), Self::default());
        for (nth, id) in ids.iter().enumerate() {
            if nth > 0 && begin.elapsed() > PART {
                return (survey, nth);
            }
            let Some(record) = evaluator.stores().stored_service(id) else { continue };
            if reconciler.is_temporary(&record) {
                continue;
            }
            let is_managed = is_managed(&settings.settings, &record);
            let inspect = || misplaced::inspect(evaluator, &record, &reconciler.allowed, &reconciler.namespace, None);
            let inspection = panics::catch_about(id, inspect).unwrap_or_else(|it| Err(anyhow!(it)));
            // Services with ready endpoints answered before these settings came, so they may answer in spite of them.
            let waits = |impact| match impact {
                Impact::Unnoticed => false,
                Impact::Seamless => is_first,
                Impact::Plain => is_first || !reconciler.allowed.ready,
            };
            survey.add(id, &record, is_managed, inspection, waits);
            // A Service that is known not to be able to move must not make others wait.
            if reconciler.is_stuck(id, &record) && survey.would_move.get(id) == Some(&false) {
                survey.would_move.remove(id);
            }
        }
        (survey, ids.len())
    }

    fn add(
        &mut self,
        id: &ServiceKey,
        record: &StoredService,
        is_managed: bool,
        inspection: anyhow::Result<Inspection>,
        waits: impl Fn(Impact) -> bool,
    ) {
        // A Service in place may still have the annotation that asks for a move. The reconciler removes it.
        if !matches!(inspection, Ok(Inspection::InPlace)) || record.asked_move() == Some(Move::Now) {
            self.open.push(id.clone());
        }
        let Ok(inspection) = inspection else { return };
        // If exempt or headless Services counted, a tenant could make the share of those that move look small.
        self.managed += usize::from(is_managed);
        let Inspection::Misplaced(found) = inspection else { return };
        let would_move = match &found.stays {
            None => true,
            // It might move as soon as an address is free, and would not have waited then.
            Some((StayReason::PoolFull, _)) => waits(found.impact),
            Some(_) => false,
        };
        // A Service whose address was set by hand never moves. If it counted, a tenant could make its whole namespace
        // wait with some of them.
        if would_move && record.by_hand() == Some(false) {
            self.would_move.insert(id.clone(), waits(found.impact));
        }
    }
}

fn managed(reconciler: &Reconciler, ids: &[Arc<ServiceKey>]) -> usize {
    let evaluator = &reconciler.evaluator;
    let settings = evaluator.settings();
    let services = ids.iter().filter_map(|id| evaluator.stores().stored_service(id));
    services.filter(|it| is_managed(&settings.settings, it) && !reconciler.is_temporary(it)).count()
}

fn is_managed(settings: &Settings, service: &StoredService) -> bool {
    skip_reason(settings, service) != Some(Skip::Unmanaged)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
