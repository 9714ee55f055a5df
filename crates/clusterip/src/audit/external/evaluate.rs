//! Decides whether Services may have their external addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::RwLock;

use clusterip_cluster::external::policy_check::ExternalPolicy;
use clusterip_cluster::external::service_fields::{claimed, shown};
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_core::external::stored;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::ExternalSettings;
use serde_json::Value;

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

/// Decides about every Service that has recorded external addresses or claims addresses of the pools, in the order of
/// their namespaces and names. The result also contains the Services that are to have external addresses.
pub(in crate::audit) fn all(external: &ExternalSettings, snapshot: &RwLock<Snapshot>) -> Vec<EvaluatedExternal> {
    let policy = ExternalPolicy::new(external);
    let services = Snapshot::read(snapshot).external_services();
    let evaluated = services.iter().filter_map(|service| {
        let mut one = concerned(external, service.value())?;
        one.refused = refused(&policy, external, snapshot, &one);
        Some(one)
    });
    evaluated.collect()
}

/// The external addresses of a Service; `None` if it has none and gets none, or if it is being deleted.
fn concerned(external: &ExternalSettings, service: Value) -> Option<EvaluatedExternal> {
    let fields = stored::read(&service);
    let (served, recorded) = (external.is_ours(&fields), stored::recorded(&fields));
    let shown = shown(&service);
    let claims = claimed(&fields, &shown, external);
    let concerned = served || !recorded.is_empty() || !claims.is_empty();
    let (id, refused) = (ServiceKey::of(&service), Refused::default());
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
    policy: &ExternalPolicy,
    external: &ExternalSettings,
    snapshot: &RwLock<Snapshot>,
    one: &EvaluatedExternal,
) -> Refused {
    let not_served = || {
        format!(
            "it is not one of those that get external addresses: type LoadBalancer with loadBalancerClass {}",
            external.load_balancer_class
        )
    };
    let record = match one.served {
        _ if one.recorded.is_empty() => None,
        true => policy.refusal(snapshot, &one.service),
        false => Some(not_served()),
    };
    let claims = if one.claims.is_empty() { None } else { policy.claim_refusal(snapshot, &one.service) };
    Refused { record, claims }
}
