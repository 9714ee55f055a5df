//! Asks the policy whether Services may have their external addresses.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_core::external::stored;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::ExternalSettings;
use clusterip_host::cluster::lookups::snapshot::Snapshot;
use clusterip_host::external::policy_check::{claim_refusal, refusal};
use clusterip_host::external::service_fields::{claimed, shown};
use clusterip_host::live_settings::LiveSettings;
use clusterip_host::object::Packed;
use clusterip_host::policy::module::{Module, ModuleError};
use serde_json::Value;

use crate::audit::services::evaluate::{EvaluateError, ListedService, listed};

/// A Service that has external addresses or is to have some.
pub struct EvaluatedExternal {
    /// Namespace and name of the Service.
    pub id: ServiceKey,
    /// The Service.
    pub service: Value,
    /// Whether this product gives the Service external addresses.
    pub served: bool,
    /// The recorded addresses, inside and outside of pools.
    pub recorded: Vec<IpAddr>,
    /// Addresses of the pools that the Service has by other means, each with its field or annotation.
    pub claims: Vec<(&'static str, IpAddr)>,
    /// The addresses that the status shows.
    pub shown: BTreeSet<IpAddr>,
    /// Why the policy refuses the addresses.
    pub refused: Refused,
}

/// Why the policy refuses the addresses of a Service; `None` if it accepts them.
#[derive(Clone, Debug, Default)]
pub struct Refused {
    /// Why it refuses the recorded addresses.
    pub record: Option<String>,
    /// Why it refuses the other addresses.
    pub claims: Option<String>,
}

/// Earlier answers of the policy, by namespace and name of the Service.
pub(in crate::audit) type ExternalCache = HashMap<ServiceKey, CachedRefusal>;

pub(in crate::audit) struct CachedRefusal {
    service: Packed,
    revision: (u64, u64),
    refused: Refused,
}

/// Asks the policy about every Service that has recorded external addresses or claims addresses of the pools, in
/// the order of their namespaces and names. The result also contains the Services that are to have external
/// addresses. An answer in `cache` is used again if the Service and its revision have not changed.
///
/// # Errors
/// [`EvaluateError`] for the first Service that the policy can't evaluate.
pub(in crate::audit) fn all(
    module: &Module,
    live: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    cache: &mut ExternalCache,
) -> Result<Vec<EvaluatedExternal>, EvaluateError> {
    let external = &live.settings.external;
    let mut before = std::mem::take(cache);
    let mut evaluated = Vec::new();
    for ListedService { id, service: packed, revision } in listed(snapshot) {
        let Some(mut one) = concerned(external, id, packed.value()) else { continue };
        one.refused = match before.remove(&one.id) {
            Some(cached) if cached.service == packed && cached.revision == revision => cached.refused,
            _ => refused(module, live, snapshot, &one)
                .map_err(|error| EvaluateError::of_service(&one.id.namespace, &one.id.name, error))?,
        };
        let refused = one.refused.clone();
        cache.insert(one.id.clone(), CachedRefusal { service: packed, revision, refused });
        evaluated.push(one);
    }
    Ok(evaluated)
}

/// The external addresses of a Service; `None` if it has none and gets none, or if it is being deleted.
fn concerned(external: &ExternalSettings, id: ServiceKey, service: Value) -> Option<EvaluatedExternal> {
    let fields = stored::read(&service);
    let (served, recorded) = (external.is_ours(&fields), stored::recorded(&fields));
    let shown = shown(&service);
    let claims = claimed(&fields, &shown, external);
    let concerned = served || !recorded.is_empty() || !claims.is_empty();
    let refused = Refused::default();
    (concerned && !fields.deleting).then_some(EvaluatedExternal {
        id,
        service,
        served,
        recorded,
        claims,
        shown,
        refused,
    })
}

fn refused(
    module: &Module,
    live: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    one: &EvaluatedExternal,
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
