//! Findings about external addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_core::address::Family;
use clusterip_core::annotations::RECORD_ANNOTATION;
use clusterip_core::settings::ExternalSettings;
use clusterip_failover::assignments::Assignments;
use clusterip_failover::external_claims;
use clusterip_failover::holder_snapshot::HolderSnapshot;

use super::evaluate::EvaluatedExternal;
use crate::audit::model::{ExternalPool, ExternalUse, Finding, Kind};
use crate::joined::joined;

/// Adds the problems of one Service.
pub fn of_service(settings: &ExternalSettings, one: &EvaluatedExternal, findings: &mut Vec<Finding>) {
    let mut found = |kind, addresses: Vec<IpAddr>, message: String, remedy: &str| {
        findings.push(external_finding(settings, kind, (&one.id.namespace, &one.id.name), addresses, message, remedy));
    };
    if let Some(reason) = &one.refused.record {
        let message =
            format!("{} is recorded, and the policy refuses it: {}", joined(&one.recorded, ","), bare(one, reason));
        let remedy = format!(
            "no agent holds it: remove the annotation {RECORD_ANNOTATION}, and `clusterip serve` gives the Service \
             another address, if it should have one"
        );
        found(Kind::RefusedExternal, one.recorded.clone(), message, &remedy);
    }
    let claimed: Vec<IpAddr> = one.claims.iter().map(|(_, address)| *address).collect();
    match &one.refused.claims {
        Some(reason) => {
            let message =
                format!("{} is claimed, and the policy refuses it: {}", joined(&claimed, ","), bare(one, reason));
            let remedy = "remove the claim: the policy did not see it, or it is older than the pool";
            found(Kind::RefusedExternal, claimed, message, remedy);
        }
        None => {
            for (place, address) in &one.claims {
                let message =
                    format!("{address} {}, and is used by {place}: no agent holds it", lies(settings, *address));
                let remedy = "use type: LoadBalancer with the loadBalancerClass of the settings, so that the Service \
                               gets an address, or exclude this address from the pool";
                found(Kind::ForeignExternal, vec![*address], message, remedy);
            }
        }
    }
    if one.served && one.recorded.is_empty() {
        let message = "it has no external address, but should have one".to_owned();
        let remedy = "`clusterip serve` gives it one; if it can't, its log and the Events of the Service say why";
        found(Kind::NoExternal, Vec::new(), message, remedy);
    }
    let strange: Vec<IpAddr> = one.shown.iter().copied().filter(|address| !one.recorded.contains(address)).collect();
    if one.served && !strange.is_empty() {
        let recorded = if one.recorded.is_empty() { "nothing".to_owned() } else { joined(&one.recorded, ",") };
        let message = format!("{} is shown in its status, but it has recorded {recorded}", joined(&strange, ","));
        let remedy = "`clusterip serve` writes the status of these Services: stop the other program that writes it";
        found(Kind::WrongIngress, strange, message, remedy);
    }
}

/// Adds the addresses that several Services have, once for each of these Services.
pub fn of_shared(settings: &ExternalSettings, uses: &BTreeMap<IpAddr, Vec<ExternalUse>>, findings: &mut Vec<Finding>) {
    // A message lists only the first few Services: each of the others has a finding of its own.
    const SHOWN: usize = 3;
    for (address, services) in uses.iter().filter(|(_, services)| services.len() > 1) {
        for (index, one) in services.iter().enumerate() {
            let others = services.iter().enumerate().filter(|(other, _)| *other != index);
            let others =
                others.map(|(_, ExternalUse { namespace, name, by })| format!("Service {namespace}/{name} ({by})"));
            let mut words: Vec<String> = others.take(SHOWN).collect();
            if services.len() - 1 > SHOWN {
                words.push(format!("{} more", services.len() - 1 - SHOWN));
            }
            let message = format!("{address} is used by it ({}), and also by {}", one.by, words.join(", "));
            let remedy = "let only one of them keep the address: agents hold it for the one whose status shows it, \
                           or else for the first by namespace and name";
            let subject = (&one.namespace, &one.name);
            findings.push(external_finding(settings, Kind::SharedExternal, subject, vec![*address], message, remedy));
        }
    }
}

/// Adds the assigned addresses that no living node holds, and the addresses that a node holds although no Service
/// has them. `nodes` is whether any Node is known.
pub fn of_holders(
    settings: &ExternalSettings,
    assigned: &Assignments,
    holders: &HolderSnapshot,
    nodes: bool,
    findings: &mut Vec<Finding>,
) {
    for (address, assignment) in assigned {
        let message = match holders.holder(*address) {
            Some(holder) => match holder.renewal.problem() {
                None => continue,
                Some(problem) => format!("{address} is held by node {}, and {problem}", holder.node),
            },
            None => format!("{address} is held by no node"),
        };
        let no_node_may = nodes && assignment.nodes.is_empty();
        let message = if no_node_may { format!("{message}, and no node may hold it") } else { message };
        let remedy = match no_node_may {
            true => "check the nodes: no ready node matches `nodes` of the pool",
            false => {
                "another node takes it over within half a minute, if `clusterip agent` runs there; otherwise \
                 the log of the agent says why"
            }
        };
        let subject = (&assignment.service.namespace, &assignment.service.name);
        findings.push(external_finding(settings, Kind::NotHeld, subject, vec![*address], message, remedy));
    }
    for (address, holder) in holders.all().filter(|(address, _)| !assigned.contains_key(address)) {
        let lease = external_claims::name(address);
        let message = format!("Node {}: {address} is held by it (Lease {lease}), but no Service has it", holder.node);
        let remedy = "agents give it back within a minute; if no agent runs any more, delete the Lease";
        findings.push(Finding {
            node: Some(holder.node),
            addresses: vec![address],
            pool: pool(settings, address),
            ..Finding::new(Kind::IdleClaim, message, remedy)
        });
    }
}

/// Adds the pools without a free address.
pub fn of_pools(settings: &ExternalSettings, pools: &[ExternalPool], findings: &mut Vec<Finding>) {
    for (pool, used) in settings.pools.iter().zip(pools) {
        for family in [Family::V4, Family::V6].into_iter().filter(|family| pool.has(*family)) {
            let ranges: Vec<_> = used.ranges.iter().filter(|range| Family::of(range.first) == family).collect();
            if ranges.iter().any(|range| range.counts.free > 0) {
                continue;
            }
            let usable = ranges.iter().fold(0_u128, |sum, range| sum.saturating_add(range.counts.usable));
            let ranges = ranges.iter().map(|range| range.range.as_str()).collect::<Vec<_>>().join(", ");
            let message = format!("external pool {} ({ranges}) is full: all {usable} addresses are used", pool.name);
            let remedy = "add a range to the pool, or delete Services that are not needed";
            let found = Finding::new(Kind::FullExternalPool, message, remedy);
            findings.push(Finding { pool: Some(pool.name.clone()), ..found });
        }
    }
}

fn external_finding(
    settings: &ExternalSettings,
    kind: Kind,
    (namespace, name): (&String, &String),
    addresses: Vec<IpAddr>,
    message: String,
    remedy: &str,
) -> Finding {
    Finding {
        namespace: Some(namespace.clone()),
        name: Some(name.clone()),
        pool: addresses.iter().find_map(|address| pool(settings, *address)),
        addresses,
        ..Finding::new(kind, format!("Service {namespace}/{name}: {message}"), remedy)
    }
}

/// A message of the policy without the name of the Service, which the finding has already.
fn bare<'r>(one: &EvaluatedExternal, reason: &'r str) -> &'r str {
    let subject = format!("Service {}/{}: ", one.id.namespace, one.id.name);
    reason.strip_prefix(&subject).unwrap_or(reason)
}

fn pool(settings: &ExternalSettings, address: IpAddr) -> Option<String> {
    settings.pool_of(address).map(|pool| pool.name.clone())
}

/// `lies in pool lan (10.0.9.10-10.0.9.40)`
fn lies(settings: &ExternalSettings, address: IpAddr) -> String {
    let pool = settings.pool_of(address);
    let range = pool.and_then(|pool| pool.ranges.iter().find(|range| range.contains(address)));
    match (pool, range) {
        (Some(pool), Some(range)) => format!("lies in pool {} ({range})", pool.name),
        _ => "lies in no pool".to_owned(),
    }
}
