//! Decides about a Service's external addresses. The ClusterIP is decided separately.

use std::cell::OnceCell;
use std::net::IpAddr;

use super::assign::assign;
use super::check::{check_beyond, check_claims, check_requested};
use super::claim::{EXTERNAL_IPS, claims};
use super::held::{Held, Holders};
use super::pool::Claimant;
use crate::address::Family;
use crate::annotations::{RECORD_ANNOTATION, recorded_addresses};
use crate::decision::{Decision, Denial, External, RecordChange, Verdict};
use crate::lookups::{Cluster, LookupError};
use crate::request::{About, Change, Request};
use crate::services::LazyNamespace;
use crate::services::Service;
use crate::services::second;
use crate::settings::Settings;

/// Adds the decision about the external addresses of a Service to one about its cluster IPs that is no refusal; nothing if
/// the request concerns none.
///
/// New claims are always checked. An address is assigned only if `held_by_host` says which addresses are in use. A
/// request that newly claims an address that the Service may not have is refused. Claims that the Service had before are
/// never refused, because its other fields must stay changeable.
pub(crate) fn decide(
    request: &Request,
    settings: &Settings,
    held_by_host: Option<&Held>,
    namespace: &LazyNamespace<'_>,
    cluster: &dyn Cluster,
    decision: &mut Decision,
) {
    let given = decision.allocated().map(<[IpAddr]>::to_vec).unwrap_or_default();
    match decided(request, settings, held_by_host, &given, namespace, cluster, &mut decision.warnings) {
        Ok(external) => decision.external = external,
        Err(denial) => {
            decision.external =
                Some(External { outcome: RecordChange::Denied, pool: None, addresses: Vec::new(), reason: None });
            decision.verdict = Verdict::Denied(denial);
        }
    }
}

/// The decision about the external addresses, or the refusal. `given` are the cluster IPs that the same request gives the
/// Service.
fn decided(
    request: &Request,
    settings: &Settings,
    held_by_host: Option<&Held>,
    given: &[IpAddr],
    namespace: &LazyNamespace<'_>,
    cluster: &dyn Cluster,
    warnings: &mut Vec<String>,
) -> Result<Option<External>, Denial> {
    let external = &settings.external;
    let About::Service(change) = &request.about else { return Ok(None) };
    if external.pools.is_empty() {
        return Ok(None);
    }
    let Change { object: service, old } = &**change;
    let subject = (request.namespace.as_str(), request.name.as_str());
    let holders = Holders { held_by_host, external, cluster, subject, listed: OnceCell::new() };
    let claimant = Claimant { service, external, namespace, holders };
    let is_ours = external.is_ours(service);
    let before = old.as_ref().filter(|old| external.is_ours(old));
    let families = families(service, old.as_ref(), given, settings);

    let mut new = claims(service);
    if let Some(old) = old {
        let had = claims(old);
        new.retain(|claim| !had.contains(claim));
    }
    if new.iter().any(|(field, _)| *field == EXTERNAL_IPS) {
        warnings.push(format!(
            "spec.externalIPs is deprecated (KEP-5707): use type LoadBalancer, loadBalancerClass {}",
            external.load_balancer_class
        ));
    }
    let mut wrong = check_claims(&claimant, &new).map_err(|error| lookup_denial(request, &error))?;
    wrong.extend(check_beyond(&claimant, old.as_ref()));
    if is_ours {
        wrong.extend(check_requested(&claimant, before, &families).map_err(|error| lookup_denial(request, &error))?);
    }
    if !wrong.is_empty() {
        let message = format!(
            "Service {}: {}; use an address of a pool that matches this Service, or get one with type: LoadBalancer \
             and loadBalancerClass: {}",
            request.subject(),
            wrong.join("; "),
            external.load_balancer_class
        );
        return Err(Denial { code: 403, message });
    }

    let record = service.annotations.get(RECORD_ANNOTATION);
    if !is_ours {
        // A record counts as held, so no other Service may have one.
        let reason = "not of type LoadBalancer with the class of external addresses";
        return Ok(record.map(|_| External::new(RecordChange::Removed, reason)));
    }
    if service.deleting {
        return Ok(Some(External::new(RecordChange::Unchanged, "being deleted")));
    }
    if held_by_host.is_none() {
        return Ok(Some(without_assignment(record, before)));
    }
    let decided = assign(&claimant, before, &families, &request.hash_key(), warnings);
    Ok(Some(decided.unwrap_or_else(|error| {
        // The request need not be refused: the Service can wait for an address.
        let reason = format!("no external address is assigned: {error}; {}", error.remedy());
        warnings.push(reason.clone());
        External::new(RecordChange::Unchanged, &reason)
    })))
}

/// The outcome if the host does not say which addresses are in use: an existing record stays.
fn without_assignment(record: Option<&String>, before: Option<&Service>) -> External {
    if let Some(record) = record.filter(|record| !record.is_empty()) {
        return External {
            addresses: recorded_addresses(record),
            ..External::new(RecordChange::Unchanged, "already recorded")
        };
    }
    let had = before.and_then(|before| before.annotations.get(RECORD_ANNOTATION));
    let addresses = had.map(|text| recorded_addresses(text)).unwrap_or_default();
    if addresses.is_empty() {
        let reason = "external addresses are assigned by the controller of `clusterip serve`, not in admission";
        return External::new(RecordChange::Unchanged, reason);
    }
    External { outcome: RecordChange::Recorded, pool: None, addresses, reason: None }
}

/// The Service's families, the primary one first; empty if they are unknown.
fn families(service: &Service, old: Option<&Service>, given: &[IpAddr], settings: &Settings) -> Vec<Family> {
    let mut families = service.families.clone();
    if let Some(old) = old.filter(|_| families.is_empty()) {
        families.clone_from(&old.families);
    }
    let primary = settings.service_cidrs.first().map(|cidr| cidr.addr());
    for addresses in [given, &service.addresses(), primary.as_slice()] {
        if families.is_empty() {
            families.extend(addresses.iter().copied().map(Family::of));
        }
    }
    families.dedup();
    if let [only] = families[..] {
        families.extend(second(service, only.other(), settings).map(|second| second.family));
    }
    families
}

/// The refusal if a look-up fails that is needed to check the claims.
fn lookup_denial(request: &Request, error: &LookupError) -> Denial {
    let message = format!("Service {}: {error}; {}", request.subject(), error.remedy());
    Denial { code: 500, message }
}
