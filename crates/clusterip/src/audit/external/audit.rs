//! How the pools of external addresses are used, by which Services, and which nodes hold their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_cluster::external::assignment_builder::assignments;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::ExternalSettings;
use clusterip_failover::assignments::Assignments;
use clusterip_failover::holder_snapshot::HolderSnapshot;
use clusterip_failover::leases::owner::Owner;
use serde_json::Value;

use super::evaluate::{self, EvaluatedExternal};
use super::findings;
use super::ranges;
use crate::audit::input::AuditInput;
use crate::audit::model::{External, ExternalAddress, ExternalPool, ExternalUse, Finding, Holder, State};

/// Audits the external addresses and adds their problems to `findings`; `None` if the settings have no pools of
/// external addresses.
pub fn audit(input: &AuditInput<'_>, findings: &mut Vec<Finding>, notes: &mut Vec<String>) -> Option<External> {
    let settings = &input.settings.settings.external;
    if settings.pools.is_empty() {
        return None;
    }
    let evaluated = evaluate::all(settings, input.snapshot);
    let nodes = input.objects("v1", "Node");
    let by_id: BTreeMap<&ServiceKey, &EvaluatedExternal> = evaluated.iter().map(|one| (&one.id, one)).collect();
    let refusal = &mut |service: &Value| by_id.get(&ServiceKey::of(service)).and_then(|one| one.refused.record.clone());
    let services = evaluated.iter().map(|one| one.service.clone());
    let (assigned, _) = assignments(settings, services, &nodes, refusal);
    let uses = uses(settings, &evaluated);
    for one in &evaluated {
        findings::of_service(settings, one, findings);
    }
    findings::of_shared(settings, &uses, findings);
    match &input.holders {
        Ok(holders) => findings::of_holders(settings, &assigned, holders, !nodes.is_empty(), findings),
        Err(reason) => notes.push(format!("it is unknown which nodes hold external addresses: {reason}")),
    }
    let used = used(&evaluated, uses, &input.in_flight, input.holders.as_ref().ok());
    let held = input.holders.as_ref().ok().map(|holders| held(&assigned, holders));
    let range = |pool, range| ranges::range(pool, range, &used, held.as_ref());
    let pools = settings.pools.iter().map(|pool| ExternalPool {
        name: pool.name.clone(),
        ranges: pool.ranges.iter().map(|span| range(pool, span)).collect(),
    });
    let pools: Vec<ExternalPool> = pools.collect();
    findings::of_pools(settings, &pools, findings);
    let count = evaluated.iter().filter(|one| !one.recorded.is_empty()).count();
    Some(External { pools, count })
}

/// The Services that have each address of the pools, in their order, and the field or annotation that gives each of
/// them the address.
fn uses(settings: &ExternalSettings, evaluated: &[EvaluatedExternal]) -> BTreeMap<IpAddr, Vec<ExternalUse>> {
    let mut uses: BTreeMap<IpAddr, Vec<ExternalUse>> = BTreeMap::new();
    for one in evaluated {
        let recorded = one.recorded.iter().map(|address| ("record", *address));
        for (by, address) in recorded.chain(one.claims.iter().copied()) {
            let uses = uses.entry(address).or_default();
            // A Service that has the address twice is listed once.
            let ServiceKey { namespace, name } = one.id.clone();
            if !uses.iter().any(|other| (&other.namespace, &other.name) == (&namespace, &name)) {
                uses.push(ExternalUse { namespace, name, by: by.to_owned() });
            }
        }
    }
    uses.retain(|address, _| settings.pool_of(*address).is_some());
    uses
}

/// Every address that is used or in flight.
fn used(
    evaluated: &[EvaluatedExternal],
    uses: BTreeMap<IpAddr, Vec<ExternalUse>>,
    in_flight: &[(IpAddr, Owner)],
    holders: Option<&HolderSnapshot>,
) -> BTreeMap<IpAddr, ExternalAddress> {
    let wrong = evaluated.iter().flat_map(|one| {
        let recorded = one.recorded.iter().filter(|_| one.refused.record.is_some());
        recorded.chain(one.claims.iter().map(|(_, address)| address))
    });
    let wrong: BTreeSet<IpAddr> = wrong.copied().collect();
    let holder = |address| {
        let holder = holders.and_then(|holders| holders.holder(address));
        holder.map(|holder| Holder { renewed: holder.renewal.problem().is_none(), node: holder.node })
    };
    let mut used: BTreeMap<IpAddr, ExternalAddress> = BTreeMap::new();
    for (address, services) in uses {
        let state = if services.len() > 1 || wrong.contains(&address) { State::Misplaced } else { State::Used };
        used.insert(address, ExternalAddress { address, state, services, holder: holder(address) });
    }
    for (address, owner) in in_flight {
        let (namespace, name) = owner.id();
        let service =
            || ExternalUse { namespace: namespace.to_owned(), name: name.to_owned(), by: "record".to_owned() };
        used.entry(*address).or_insert_with(|| ExternalAddress {
            address: *address,
            state: State::InFlight,
            services: vec![service()],
            holder: holder(*address),
        });
    }
    used
}

/// The assigned addresses that a living node holds.
fn held(assigned: &Assignments, holders: &HolderSnapshot) -> BTreeSet<IpAddr> {
    let living = holders.all().filter(|(_, holder)| holder.renewal.problem().is_none());
    living.map(|(address, _)| address).filter(|address| assigned.contains_key(address)).collect()
}
