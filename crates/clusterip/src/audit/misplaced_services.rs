//! Finds the Services that are misplaced with settings that need not be in use, for `clusterip plan`.

use std::sync::{Arc, RwLock};

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::watch::control_plane_services::ControlPlaneServices;
use clusterip_core::annotations::Move;
use clusterip_moves::temporary::is_being_deleted;
use serde::Serialize;

use super::model::{Finding, Kind};
use super::services::{AuditCache, PlacedService, place_all};
use super::{service_findings, unknown_callers, unknown_owners};
use crate::service_selector::ServiceSelector;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MisplacedService {
    #[serde(flatten)]
    pub finding: Finding,
    /// The pools that the addresses of the Service lie in; empty for addresses outside of all pools.
    pub lies_in: Vec<String>,
    /// Whether `clusterip move` can move the Service, with the options that the remedy names.
    pub moves: bool,
}

#[derive(Debug, Default)]
pub(crate) struct MisplacedServices {
    pub services: Vec<MisplacedService>,
    pub notes: Vec<String>,
}

impl MisplacedServices {
    pub fn find(
        settings: &LiveSettings,
        snapshot: &Arc<RwLock<Snapshot>>,
        called: &ControlPlaneServices,
        selector: Option<&ServiceSelector>,
    ) -> Self {
        let (mut services, mut misplaced) = (Vec::new(), Vec::new());
        for placed in place_all(settings, snapshot, &mut AuditCache::default()) {
            if selector.is_some_and(|selector| !selector.matches(&placed.service.value())) {
                continue;
            }
            if let Some(service) = MisplacedService::of(settings, &placed, called) {
                services.push(service);
                misplaced.push(placed);
            }
        }
        services.sort_by_key(|service| service.finding.kind);
        let callers = unknown_callers(called, services.iter().map(|service| &service.finding));
        let notes = unknown_owners(&misplaced).into_iter().chain(callers).collect();
        Self { services, notes }
    }
}

impl MisplacedService {
    fn of(settings: &LiveSettings, placed: &PlacedService, called: &ControlPlaneServices) -> Option<Self> {
        let placement = placed.placement.as_ref().as_ref().ok()?;
        let found = service_findings::of_service(&settings.settings, placed, called, false);
        let is_misplaced = |finding: &Finding| matches!(finding.kind, Kind::Misplaced | Kind::ByHand | Kind::NoPool);
        let finding = found.into_iter().find(is_misplaced)?;
        let service = placed.service.value();
        let moves =
            placement.by_hand != Some(true) && Move::of(&service) != Some(Move::Never) && !is_being_deleted(&service);
        Some(Self { finding, lies_in: placement.lies_in.clone(), moves })
    }
}
