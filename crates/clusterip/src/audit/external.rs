//! Whether Services may have their external addresses, how those of the pools are used and held, and the problems.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_cluster::external::assignments::{assignments, owners};
use clusterip_cluster::external::{ExternalPolicy, Refusal, claimed};
use clusterip_cluster::snapshot::{Snapshot, StoredService};
use clusterip_core::address::{Family, Span, Withholding};
use clusterip_core::annotations::RECORD_ANNOTATION;
use clusterip_core::external::{Announcer, Sharer, claim};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{self, ExternalSettings};
use clusterip_failover::assignments::Assignments;
use clusterip_failover::claims::HolderClaim;
use clusterip_failover::holders::HolderSnapshot;
use ipnet::IpNet;

use super::AuditInput;
use super::model::{self, External, ExternalAddress, ExternalRange, ExternalUse, Finding, Holder, Kind, Pool, State};
use crate::announcer_pools;
use crate::service_placement::without_subject;
use crate::text::{first_few, joined};
use crate::usage::{self, Usage};

/// A Service that has external addresses or is to have some.
pub(super) struct ExternalPlacement {
    service: Arc<StoredService>,
    /// The program that announces its addresses; `None` if it gets none from the policy.
    announcer: Option<Announcer>,
    recorded: Vec<IpAddr>,
    /// Addresses of the pools that the Service has by other means, each with its field or annotation.
    claims: Vec<(&'static str, IpAddr)>,
    shown: BTreeSet<IpAddr>,
    refused_record: Refusal,
    refused_claims: Option<String>,
}

/// The Services that have, claim or are to have external addresses, by namespace and name, except deleted ones.
fn place_all(external: &ExternalSettings, snapshot: &Arc<RwLock<Snapshot>>) -> Vec<ExternalPlacement> {
    let policy = ExternalPolicy::new(external);
    let services = Snapshot::read(snapshot).external_services();
    let placed = services.into_iter().filter_map(|service| {
        let fields = claim::read_stored(&service.value());
        let (announcer, recorded, shown) = (service.announcer(external), claim::recorded(&fields), service.shown());
        let served = announcer.is_some();
        let claims = claimed(&fields, &shown, external);
        if fields.deleting || !served && recorded.is_empty() && claims.is_empty() {
            return None;
        }
        let refused_record = match served {
            _ if recorded.is_empty() => Ok(None),
            true => policy.refusal(snapshot, &service),
            false => Ok(Some(format!(
                "it is not one of those that get external addresses: type LoadBalancer with loadBalancerClass {}",
                external.load_balancer_class
            ))),
        };
        let refused_claims =
            if claims.is_empty() { None } else { policy.claim_refusal(snapshot, &service).unwrap_or_else(Some) };
        Some(ExternalPlacement { service, announcer, recorded, claims, shown, refused_record, refused_claims })
    });
    placed.collect()
}

/// Audits the external addresses and adds their problems to `findings`; `None` without pools of them.
pub(super) fn audit(input: &AuditInput<'_>, findings: &mut Vec<Finding>, notes: &mut Vec<String>) -> Option<External> {
    let settings = &input.settings.settings.external;
    if settings.pools.is_empty() {
        return None;
    }
    let (placed, others) = (place_all(settings, &input.cluster.snapshot), findings.len());
    let nodes = Snapshot::read(&input.cluster.snapshot).nodes().cloned().collect::<Vec<_>>();
    let by_key: BTreeMap<&ServiceKey, _> = placed.iter().map(|one| (one.service.key(), &one.refused_record)).collect();
    let refusal =
        &mut |service: &StoredService| by_key.get(service.key()).map_or(Ok(None), |refused| (*refused).clone());
    let (owners, _) = owners(settings, placed.iter().map(|one| Arc::clone(&one.service)), refusal);
    let assigned = assignments(settings, &owners, &nodes, &|_| None);
    let used = used(input, &placed);
    for one in &placed {
        of_service(settings, one, findings);
    }
    of_shared(input, &used, findings);
    match &input.cluster.holders {
        Ok(holders) => of_holders(&assigned, holders, !nodes.is_empty(), findings),
        Err(reason) => notes.push(format!("it is unknown which nodes hold external addresses: {reason}")),
    }
    for finding in findings.iter_mut().skip(others) {
        let pool = finding.addresses.iter().find_map(|address| settings.pool_of(*address));
        finding.pool = pool.map(|pool| pool.name.clone());
    }
    let held = input.cluster.holders.as_ref().ok().map(|holders| {
        let living = holders.all().filter(|(_, holder)| holder.renewal.problem().is_none());
        living.map(|(address, _)| address).filter(|address| assigned.contains_key(address)).collect()
    });
    let pools = settings.pools.iter().map(|pool| Pool {
        name: pool.name.clone(),
        ranges: pool
            .ranges
            .iter()
            .map(|span| range(pool, span, &used, held.as_ref().filter(|_| pool.announcer == Announcer::Agents)))
            .collect(),
    });
    let pools: Vec<Pool<ExternalRange>> = pools.collect();
    findings.extend(pools.iter().flat_map(full));
    if let Some(others) = &input.cluster.announcer_pools {
        findings.extend(announcer_pools::findings(settings, others));
    }
    let count = placed.iter().filter(|one| !one.recorded.is_empty()).count();
    Some(External { pools, count })
}

/// The addresses of the pools that are used or in flight. A Service that has an address twice is listed once.
fn used(input: &AuditInput<'_>, placed: &[ExternalPlacement]) -> BTreeMap<IpAddr, ExternalAddress> {
    let settings = &input.settings.settings.external;
    let unused = |address, state| {
        let holder = input.cluster.holders.as_ref().ok().and_then(|holders| holders.holder(address));
        let holder = holder.map(|holder| Holder { renewed: holder.renewal.problem().is_none(), node: holder.node });
        ExternalAddress { address, state, services: Vec::new(), holder }
    };
    let mut used: BTreeMap<IpAddr, ExternalAddress> = BTreeMap::new();
    for one in placed {
        let ServiceKey { namespace, name } = one.service.key();
        let recorded =
            one.recorded.iter().map(|address| ("record", *address, matches!(one.refused_record, Ok(Some(_)))));
        let claims = one.claims.iter().map(|(by, address)| (*by, *address, true));
        let inside = recorded.chain(claims).filter(|(_, address, _)| settings.pool_of(*address).is_some());
        for (by, address, is_wrong) in inside {
            let entry = used.entry(address).or_insert_with(|| unused(address, State::Used));
            if !entry.services.iter().any(|other| (&other.namespace, &other.name) == (namespace, name)) {
                let (namespace, name) = (namespace.clone(), name.clone());
                entry.services.push(ExternalUse { namespace, name, by: by.to_owned() });
                if !may_share(input, address, &entry.services) {
                    entry.state = State::Misplaced;
                }
            }
            if is_wrong {
                entry.state = State::Misplaced;
            }
        }
    }
    for (address, owner) in &input.cluster.in_flight {
        let ServiceKey { namespace, name } = owner.service.clone();
        let service = ExternalUse { namespace, name, by: "record".to_owned() };
        let in_flight = || ExternalAddress { services: vec![service], ..unused(*address, State::InFlight) };
        used.entry(*address).or_insert_with(in_flight);
    }
    used
}

pub fn range(
    pool: &settings::ExternalPool,
    range: &Span,
    used: &BTreeMap<IpAddr, ExternalAddress>,
    held: Option<&BTreeSet<IpAddr>>,
) -> ExternalRange {
    let (candidates, withheld) = (pool.candidates_in(range), pool.withheld_spans(range));
    let inside = range.first()..=range.last();
    let held = held.map(|held| held.range(inside.clone()).count() as u128);
    let addresses: Vec<ExternalAddress> = used.range(inside).map(|(_, address)| address.clone()).collect();
    let in_flight = |address: &ExternalAddress| (address.address, address.state == State::InFlight);
    let usage = Usage::of_addresses(&candidates, addresses.iter().map(in_flight));
    let excluded = withheld.iter().fold(0_u128, |sum, span| sum.saturating_add(span.count()));
    let in_model = |span: Span| model::Span { first: span.first(), last: span.last(), why: Withholding::Excluded };
    ExternalRange {
        range: range.to_string(),
        first: range.first(),
        last: range.last(),
        around: around(range),
        counts: Usage { withheld: excluded, held, ..usage },
        withheld: withheld.into_iter().map(in_model).collect(),
        addresses,
    }
}

fn around(range: &Span) -> IpNet {
    let first = IpNet::from(range.first());
    iter::successors(Some(first), IpNet::supernet).find(|net| net.contains(&range.last())).unwrap_or(first)
}

fn of_service(settings: &ExternalSettings, one: &ExternalPlacement, findings: &mut Vec<Finding>) {
    let key = one.service.key();
    let mut found = |kind, addresses: Vec<IpAddr>, message: String, remedy: &str| {
        findings.push(Finding { addresses, ..Finding::of_service(kind, key, &message, remedy) });
    };
    let refused = |how, addresses: &[IpAddr], reason| {
        format!("{} is {how}, and the policy refuses it: {}", joined(addresses, ","), without_subject(key, reason))
    };
    if let Err(failure) = &one.refused_record {
        let message = format!("{} is recorded, and {failure}", joined(&one.recorded, ","));
        let remedy = "report this defect: the Service keeps the addresses that its status shows, and gets no others";
        found(Kind::RefusedExternal, one.recorded.clone(), message, remedy);
    }
    if let Ok(Some(reason)) = &one.refused_record {
        let remedy = format!(
            "no agent holds it: remove the annotation {RECORD_ANNOTATION}, and `clusterip serve` gives the Service \
             another address, if it should have one"
        );
        let message = refused("recorded", &one.recorded, reason);
        found(Kind::RefusedExternal, one.recorded.clone(), message, &remedy);
    }
    match &one.refused_claims {
        Some(reason) => {
            let claimed: Vec<IpAddr> = one.claims.iter().map(|(_, address)| *address).collect();
            let message = refused("claimed", &claimed, reason);
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
    if one.announcer.is_some() && one.recorded.is_empty() {
        let message = "it has no external address, but should have one".to_owned();
        let remedy = "`clusterip serve` gives it one; if it can't, its log and the Events of the Service say why";
        found(Kind::NoExternal, Vec::new(), message, remedy);
    }
    let strange: Vec<IpAddr> = one.shown.iter().copied().filter(|address| !one.recorded.contains(address)).collect();
    let agents = one.announcer == Some(Announcer::Agents);
    if let Some(announcer) = one.announcer.filter(|_| !agents)
        && !one.recorded.is_empty()
        && one.shown != one.recorded.iter().copied().collect()
    {
        let (recorded, name) = (joined(&one.recorded, ","), announcer.name());
        let shown = if one.shown.is_empty() { "no address".to_owned() } else { joined(&one.shown, ",") };
        let message = format!("it has recorded {recorded}, and its status, which {name} writes, shows {shown}");
        let remedy = "the Events of the Service say why, if its announcer refuses the address: is it in a pool of that \
                      program, and does that program serve the loadBalancerClass of the Service?";
        found(Kind::WrongIngress, one.recorded.clone(), message, remedy);
    }
    if agents && !strange.is_empty() {
        let recorded = if one.recorded.is_empty() { "nothing".to_owned() } else { joined(&one.recorded, ",") };
        let message = format!("{} is shown in its status, but it has recorded {recorded}", joined(&strange, ","));
        let remedy = "`clusterip serve` writes the status of these Services: stop the other program that writes it";
        found(Kind::WrongIngress, strange, message, remedy);
    }
}

/// Whether the announcer of an address lets these Services share it. A single Service needs no permission for that.
fn may_share(input: &AuditInput<'_>, address: IpAddr, services: &[ExternalUse]) -> bool {
    let [others @ .., last] = services else { return true };
    let snapshot = Snapshot::read(&input.cluster.snapshot);
    let read = |key: &ServiceKey| snapshot.service(key)?.in_request(|_| true).ok();
    let key = |one: &ExternalUse| ServiceKey::new(&one.namespace, &one.name);
    let pool = input.settings.settings.external.pool_of(address);
    let (Some(service), Some(pool)) = (read(&key(last)), pool) else { return others.is_empty() };
    let sharer = Sharer { service: &service, namespace: &last.namespace, announcer: pool.announcer };
    others.is_empty() || sharer.shares(&others.iter().map(key).collect::<Vec<_>>(), read)
}

fn of_shared(input: &AuditInput<'_>, used: &BTreeMap<IpAddr, ExternalAddress>, findings: &mut Vec<Finding>) {
    let is_wrong = |used: &&ExternalAddress| {
        (1..used.services.len()).any(|last| !may_share(input, used.address, &used.services[..=last]))
    };
    let shared = used.values().filter(is_wrong);
    for ExternalAddress { address, services, .. } in shared {
        for (index, one) in services.iter().enumerate() {
            let others = services.iter().enumerate().filter(|(other, _)| *other != index);
            let others =
                others.map(|(_, ExternalUse { namespace, name, by })| format!("Service {namespace}/{name} ({by})"));
            let others = first_few(others, |more| format!("{more} more"));
            let message = format!("{address} is used by it ({}), and also by {others}", one.by);
            let remedy = "let only one of them keep the address: agents hold it for the one whose status shows it, \
                           or else for the first by namespace and name";
            let key = ServiceKey::new(&one.namespace, &one.name);
            let finding = Finding::of_service(Kind::SharedExternal, &key, &message, remedy);
            findings.push(Finding { addresses: vec![*address], ..finding });
        }
    }
}

/// Adds the assigned addresses that no living node holds, and those that a node holds although no Service has them.
fn of_holders(assigned: &Assignments, holders: &HolderSnapshot, nodes: bool, findings: &mut Vec<Finding>) {
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
        let finding = Finding::of_service(Kind::NotHeld, &assignment.service, &message, remedy);
        findings.push(Finding { addresses: vec![*address], ..finding });
    }
    for (address, holder) in holders.all().filter(|(address, _)| !assigned.contains_key(address)) {
        let lease = HolderClaim::lease_name(address);
        let message = format!("{address} is held by it (Lease {lease}), but no Service has it");
        let remedy = "agents give it back within a minute; if no agent runs any more, delete the Lease";
        let finding = Finding::of_node(Kind::IdleClaim, &holder.node, &message, remedy);
        findings.push(Finding { addresses: vec![address], ..finding });
    }
}

fn full(pool: &Pool<ExternalRange>) -> Vec<Finding> {
    let full = usage::full(pool.ranges.iter().map(|range| (Family::of(range.first), range.counts)));
    let finding = |(family, sum): (&Family, &Usage)| {
        let ranges = pool.ranges.iter().filter(|range| Family::of(range.first) == *family).map(|range| &range.range);
        let (name, ranges, usable) = (&pool.name, joined(ranges, ", "), sum.usable);
        let message = format!("external pool {name} ({ranges}) is full: all {usable} addresses are used");
        let remedy = "add a range to the pool, or delete Services that are not needed";
        Finding::of_pool(Kind::FullExternalPool, name, message, remedy)
    };
    full.iter().map(finding).collect()
}

fn lies(settings: &ExternalSettings, address: IpAddr) -> String {
    let pool = settings.pool_of(address);
    let range = pool.and_then(|pool| pool.ranges.iter().find(|range| range.contains(address)));
    match (pool, range) {
        (Some(pool), Some(range)) => format!("lies in pool {} ({range})", pool.name),
        _ => "lies in no pool".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::settings::Settings;
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_a_range_are_counted_by_state() {
        #[derive(Default)]
        struct Case {
            name: &'static str,
            cidr: &'static str,
            exclude: &'static [&'static str],
            used: &'static [&'static str],
            in_flight: &'static [&'static str],
            held: &'static [&'static str],
            expected_kept: &'static str,
            /// The smallest CIDR that contains the range.
            expected_around: &'static str,
            /// Without the held addresses.
            expected_counts: Usage,
        }
        let none = Usage::default();
        let cases = [
            Case {
                name: "a range with exclusions, one of which reaches beyond it",
                cidr: "10.0.9.10-10.0.9.40",
                exclude: &["10.0.9.20", "10.0.9.36-10.0.9.60"],
                used: &["10.0.9.10", "10.0.9.20"],
                in_flight: &["10.0.9.11"],
                held: &["10.0.9.10"],
                expected_kept: "10.0.9.20-10.0.9.20, 10.0.9.36-10.0.9.40",
                expected_around: "10.0.9.0/26",
                expected_counts: Usage {
                    usable: 25,
                    used: 1,
                    in_flight: 1,
                    free: 23,
                    withheld: 6,
                    used_anyway: 1,
                    ..none
                },
            },
            Case {
                name: "one address",
                cidr: "10.0.9.10-10.0.9.10",
                used: &["10.0.9.10", "10.0.9.9"],
                held: &["10.0.9.9"],
                expected_around: "10.0.9.10/32",
                expected_counts: Usage { usable: 1, used: 1, ..none },
                ..Case::default()
            },
            Case {
                name: "a range across the boundary of a /24",
                cidr: "10.0.9.250-10.0.10.5",
                expected_around: "10.0.8.0/22",
                expected_counts: Usage { usable: 12, free: 12, ..none },
                ..Case::default()
            },
            Case {
                name: "a large CIDR without its first half",
                cidr: "fd00::/8",
                exclude: &["fd00::/9"],
                expected_kept: "fd00::-fd7f:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                expected_around: "fd00::/8",
                expected_counts: Usage { usable: 1 << 119, free: 1 << 119, withheld: 1 << 119, ..none },
                ..Case::default()
            },
        ];
        for case in cases {
            let Case { name, cidr, exclude, used, in_flight, held, expected_kept, expected_around, expected_counts } =
                case;
            let pool = json!({"name": "p", "cidrs": [cidr], "exclude": exclude});
            let settings = Settings::from_value(&json!({"external": {"pools": [pool]}})).unwrap();
            let pool = &settings.external.pools[0];
            let address = |text: &&str, state| {
                let address: IpAddr = text.parse().unwrap();
                (address, ExternalAddress { address, state, services: Vec::new(), holder: None })
            };
            let used = used.iter().map(|text| address(text, State::Used));
            let used = used.chain(in_flight.iter().map(|text| address(text, State::InFlight))).collect();
            let held: BTreeSet<IpAddr> = held.iter().map(|text| text.parse().unwrap()).collect();
            let inside = held.iter().filter(|address| pool.contains(**address)).count() as u128;
            let found = range(pool, &pool.ranges[0], &used, Some(&held));
            let spans: Vec<String> =
                found.withheld.iter().map(|span| format!("{}-{}", span.first, span.last)).collect();
            assert_eq!(spans.join(", "), expected_kept, "{name}");
            assert_eq!(found.around.to_string(), expected_around, "{name}");
            assert_eq!(found.counts, Usage { held: Some(inside), ..expected_counts }, "{name}");
        }
    }
}
