//! What Services have of external addresses, and what the policy says of it.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_core::annotations::{RECORD_ANNOTATION, recorded_addresses};
use clusterip_core::external::claim::claims;
use clusterip_core::service::Service;
use clusterip_core::settings::ExternalSettings;
use serde_json::Value;

use super::judge::{JudgeError, Seen, seen};
use crate::cluster::object::{Packed, text};
use crate::cluster::snapshot::Snapshot;
use crate::external::admitted::{claim_refusal, refusal};
use crate::external::recorded::{is_served, shown};
use crate::live_settings::LiveSettings;
use crate::policy::module::{Module, ModuleError};

/// The place of an address that only the status of a Service shows.
const STATUS: &str = "status.loadBalancer.ingress";

/// A Service that has to do with external addresses.
pub struct Judged {
    /// Its namespace and name.
    pub id: (String, String),
    /// It.
    pub service: Value,
    /// Whether it is one of those that get external addresses.
    pub served: bool,
    /// What it has recorded, in pools and outside of them.
    pub recorded: Vec<IpAddr>,
    /// What it has of the pools by other means, each with its place.
    pub claims: Vec<(&'static str, IpAddr)>,
    /// What its status shows.
    pub shown: BTreeSet<IpAddr>,
    /// What the policy has against it.
    pub refused: Refused,
}

/// What the policy has against a Service, in its words; nothing where it has nothing.
#[derive(Clone, Debug, Default)]
pub struct Refused {
    /// Against what is recorded.
    pub record: Option<String>,
    /// Against what is claimed otherwise.
    pub claims: Option<String>,
}

/// What was said of Services before, by namespace and name.
pub(super) type Known = HashMap<(String, String), Said>;

pub(super) struct Said {
    service: Packed,
    revision: (u64, u64),
    refused: Refused,
}

/// Asks about every Service that has recorded external addresses or claims some of the pools, in the order of
/// their namespaces and names; those that are to have some are told, too. What is `known` and still holds is
/// not asked for again.
///
/// # Errors
/// [`JudgeError`] for the first Service that the policy has no answer for.
pub(super) fn all(
    module: &Module,
    live: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    known: &mut Known,
) -> Result<Vec<Judged>, JudgeError> {
    let external = &live.settings.external;
    let mut before = std::mem::take(known);
    let mut judged = Vec::new();
    for Seen { id, service: packed, revision } in seen(snapshot) {
        let Some(mut one) = concerned(external, id, packed.value()) else { continue };
        one.refused = match before.remove(&one.id) {
            Some(said) if said.service == packed && said.revision == revision => said.refused,
            _ => refused(module, live, snapshot, &one)
                .map_err(|error| JudgeError::of_service(&one.id.0, &one.id.1, error))?,
        };
        let refused = one.refused.clone();
        known.insert(one.id.clone(), Said { service: packed, revision, refused });
        judged.push(one);
    }
    Ok(judged)
}

/// What a Service says; nothing where it has nothing to do with external addresses, or is going.
fn concerned(external: &ExternalSettings, id: (String, String), service: Value) -> Option<Judged> {
    let served = is_served(&service, external);
    let recorded = recorded_addresses(text(&service, &["metadata", "annotations", RECORD_ANNOTATION]));
    let shown = shown(&service);
    let mut claims = Service::read(&service, "object").map(|service| claims(&service)).unwrap_or_default();
    // By that field ours ask, too.
    claims.retain(|(place, _)| !served || *place != "spec.loadBalancerIP");
    // What the status of ours shows is ours to say.
    let by_others =
        shown.iter().filter(|_| !served).filter(|address| !claims.iter().any(|(_, other)| other == *address));
    let by_others: Vec<_> = by_others.map(|address| (STATUS, *address)).collect();
    claims.extend(by_others);
    claims.retain(|(_, address)| external.pool_of(*address).is_some() && !recorded.contains(address));
    let going = service.pointer("/metadata/deletionTimestamp").is_some_and(|going| !going.is_null());
    let concerned = served || !recorded.is_empty() || !claims.is_empty();
    let refused = Refused::default();
    (concerned && !going).then_some(Judged { id, service, served, recorded, claims, shown, refused })
}

fn refused(
    module: &Module,
    live: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    one: &Judged,
) -> Result<Refused, ModuleError> {
    let mut refused = Refused::default();
    if !one.recorded.is_empty() {
        refused.record = match one.served {
            true => refusal(module, live, snapshot, &one.service)?,
            false => Some(format!(
                "it is not one of those that get external addresses: type LoadBalancer with loadBalancerClass {}",
                live.settings.external.load_balancer_class
            )),
        };
    }
    if !one.claims.is_empty() {
        refused.claims = claim_refusal(module, live, snapshot, &one.service)?;
    }
    Ok(refused)
}
