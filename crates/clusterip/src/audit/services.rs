//! Decides about every Service, counts how the addresses of their pools are used, and describes problems.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_cluster::in_order::in_order;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::snapshot::{Snapshot, StoredService};
use clusterip_cluster::watch::control_plane_services::{ControlPlaneServices, MOVE_OPTION, called_by, webhook_remedy};
use clusterip_core::address::{Family, Order, WithheldSpan, Withholding, overlap};
use clusterip_core::annotations::{MOVE_ANNOTATION, MOVING_ANNOTATION, Move, OS_ANNOTATION, POOL_ANNOTATION};
use clusterip_core::label_selector::LabelSelector;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{DnsAddress, Pool, Settings, UnusableRange, is_outside_service_ranges};
use clusterip_core::{InUse, decide_create};
use clusterip_moves::temporary::looks_temporary;
use ipnet::IpNet;
use serde::Serialize;

use super::model::{self, Address, Finding, Kind, Range, Span, State};
use super::{AuditInput, unknown_callers, unknown_owners};
use crate::service_placement::{Fit, Placement, Skip, as_if_created, fits, skip_reason, without_subject};
use crate::text::joined;
use crate::usage::{self, Usage};

#[derive(Clone)]
pub(crate) struct PlacedService {
    pub service: Arc<StoredService>,
    pub placement: Arc<Result<Placement, Skip>>,
}

/// Earlier decisions. A decision holds until its Service, an object that it depends on, or the settings change.
#[derive(Default)]
pub(crate) struct AuditCache {
    settings: String,
    /// With the revision of the objects in the Service's namespace.
    services: HashMap<ServiceKey, ((u64, u64), PlacedService)>,
}

pub(super) fn place_all(
    settings: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    cache: &mut AuditCache,
) -> Vec<PlacedService> {
    if cache.settings != settings.hash {
        *cache = AuditCache { settings: settings.hash.clone(), ..AuditCache::default() };
    }
    // The decisions follow, so they are at least as new as these revisions.
    let services: Vec<(Arc<StoredService>, (u64, u64))> = {
        let snapshot = Snapshot::read(snapshot);
        let listed = |service: &Arc<StoredService>| (Arc::clone(service), snapshot.revision(&service.key().namespace));
        snapshot.each_service(None).map(listed).collect()
    };
    let before = std::mem::take(&mut cache.services);
    let place_one = |(service, revision): &(Arc<StoredService>, (u64, u64))| {
        let cached = before.get(service.key());
        let cached = cached.filter(|(at, cached)| at == revision && cached.service == *service);
        let now = || Arc::new(place(&settings.settings, snapshot, service));
        cached.map_or_else(now, |(_, cached)| Arc::clone(&cached.placement))
    };
    let mut all = Vec::with_capacity(services.len());
    in_order(&services, place_one, |(service, revision), placement| {
        let placed = PlacedService { service: Arc::clone(service), placement };
        cache.services.insert(placed.service.key().clone(), (*revision, placed.clone()));
        all.push(placed);
    });
    all
}

/// Finds out where a Service belongs, even if its pool is full.
pub(super) fn place(
    settings: &Settings,
    snapshot: &Arc<RwLock<Snapshot>>,
    service: &StoredService,
) -> Result<Placement, Skip> {
    // A temporary Service ends with its move, and one of them has an address of another pool until then.
    let key = service.key();
    if looks_temporary(&key.name, |key| service.label(key)) {
        return Err(Skip::Unmanaged);
    }
    if let Some(skip) = skip_reason(settings, service) {
        return Err(skip);
    }
    let mut cluster = StoredCluster::of(snapshot, key);
    cluster.all_are_free = true;
    let place = || {
        let created = as_if_created(service);
        let decision = decide_create("", &key.namespace, created, settings, InUse::default(), &cluster);
        Placement::of(settings, service, &decision, &cluster)
    };
    Ok(Placement::guarded(service, place))
}

pub(super) fn range(settings: &Settings, pool: &Pool, cidr: IpNet, used: &BTreeMap<IpAddr, Address>) -> Range {
    let alone = Pool { cidrs: vec![cidr], ..pool.clone() };
    let candidates = settings.candidates(&alone, Family::of(cidr.addr()));
    let withheld = settings.withheld_spans(pool, cidr);
    let addresses: Vec<Address> =
        used.range(cidr.network()..=cidr.broadcast()).map(|(_, address)| address.clone()).collect();
    let in_flight = |address: &Address| (address.address, address.state == State::InFlight);
    let usage = Usage::of_addresses(&candidates, addresses.iter().map(in_flight));
    let is_reserved = |withheld: &&WithheldSpan| withheld.why != Withholding::Excluded;
    let reserved = withheld.iter().filter(is_reserved).map(|withheld| withheld.span.count()).sum();
    let counts = Usage { withheld: reserved, ..usage };
    Range { cidr, counts, withheld: withheld.into_iter().map(Span::from).collect(), addresses }
}

pub(crate) const OTHER_WEBHOOK_PROBLEM: &str = "the webhook of K2s also gives addresses to Services, and it deletes \
                                                Services of Windows workloads and creates them again";

pub(crate) const OTHER_WEBHOOK_REMEDY: &str = "if `clusterip` gives addresses to the Services of this cluster, run \
                                               `kubectl apply --server-side --force-conflicts -k deploy/k2s`: the API \
                                               server then never calls that webhook";

pub(super) const HALF_MOVED: &str = "it looks as if a move has begun and has not ended";

/// On what, besides the Service itself, it depends whether `clusterip move` moves a Service.
#[derive(Clone, Copy)]
pub(super) struct MoveConditions<'a> {
    pub called: &'a ControlPlaneServices,
    pub snapshot: &'a RwLock<Snapshot>,
    /// Whether the settings are refused.
    pub refused: bool,
}

impl<'a> MoveConditions<'a> {
    pub fn of(input: &AuditInput<'a>) -> Self {
        Self { called: &input.cluster.called, snapshot: &input.cluster.snapshot, refused: input.refused }
    }
}

/// The problems of one Service.
pub(super) fn of_service(settings: &Settings, placed: &PlacedService, conditions: MoveConditions<'_>) -> Vec<Finding> {
    let placement = match placed.placement.as_ref() {
        Ok(placement) => placement,
        Err(Skip::Unmanaged) => return Vec::new(),
        Err(Skip::HalfMoved) => return vec![half_moved(placed, conditions.refused)],
    };
    let mut findings: Vec<Finding> = misplaced(settings, placed, conditions, placement).into_iter().collect();
    if findings.is_empty() && placement.denial().is_none() && placement.mixed.is_empty() {
        return findings;
    }
    if placed.service.is_deleting() {
        let remedy = "nothing moves it, because it is being deleted: find out why its finalizers stay";
        findings.iter_mut().for_each(|found| found.remedy = remedy.to_owned());
        return findings;
    }
    let about_service = |kind, message: &str, remedy: &str| Finding {
        addresses: placement.addresses.clone(),
        pool: placement.pool.clone(),
        evidence: placement.evidence.clone(),
        ..Finding::of_service(kind, placed.service.key(), message, remedy)
    };
    if let Some(reason) = placement.denial() {
        let reason = without_subject(placed.service.key(), reason);
        let message = format!("it would be denied if it were created now: {reason}");
        let remedy = "correct what the policy refuses before the Service is created again";
        findings.push(about_service(Kind::Denied, &message, remedy));
    }
    if !placement.mixed.is_empty() {
        let remedy =
            format!("create a Service for each kind of nodes, or select one kind with the annotation {OS_ANNOTATION}");
        findings.push(about_service(Kind::MixedNodes, &placement.mixed.join("; "), &remedy));
    }
    findings
}

pub(super) fn of_pools(input: &AuditInput<'_>, pools: &[model::Pool], findings: &mut Vec<Finding>) {
    let settings = &input.settings.settings;
    let ranges = input.cluster.ranges.nets();
    let kubernetes =
        Snapshot::read(&input.cluster.snapshot).service(&ServiceKey::new("default", "kubernetes")).cloned();
    let kubernetes = kubernetes.iter().flat_map(|service| service.addresses());
    for (pool, used) in settings.pools.iter().zip(pools) {
        let ranges_of_pool = used.ranges.iter().map(|range| (Family::of(range.cidr.addr()), range.counts));
        findings.extend(usage::full(ranges_of_pool).iter().map(|(family, sum)| full(settings, pool, *family, sum)));
        let outside: Vec<&IpNet> =
            pool.cidrs.iter().filter(|cidr| is_outside_service_ranges(**cidr, &ranges)).collect();
        if !outside.is_empty() {
            let message = format!(
                "pool {}: {} {} outside of the cluster's Service ranges ({}): the API server refuses its addresses",
                pool.name,
                joined(&outside, ", "),
                if outside.len() == 1 { "lies" } else { "lie" },
                joined(&ranges, ", ")
            );
            let remedy = if settings.pools == Settings::default().pools {
                "these are the default pools, those of K2s: `clusterip init` prints settings that fit the cluster"
            } else {
                "create a ServiceCIDR for the range, or remove the range from the pool"
            };
            findings.push(Finding::of_pool(Kind::OutsideRanges, &pool.name, message, remedy));
        }
        let is_candidate = |address: &&IpAddr| settings.candidates(pool, Family::of(**address)).contains(**address);
        for address in kubernetes.clone().filter(is_candidate) {
            let message = format!(
                "pool {}: {address}, the address of default/kubernetes, lies in {} and is neither reserved nor \
                 excluded: while that Service is being created, another Service could get it",
                pool.name,
                range_of(pool, *address)
            );
            let remedy = "name the cluster's ranges in services.serviceCIDRs, the primary one first, or exclude the \
                           address from the pool";
            let found = Finding::of_pool(Kind::OverKubernetes, &pool.name, message, remedy);
            findings.push(Finding { addresses: vec![*address], ..found });
        }
    }
    findings.extend(settings.unusable_service_cidrs.iter().map(|range| unusable(settings, range)));
    if settings.order == Order::Lowest && !input.ledger {
        let message = "services.order is lowest: in Kubewarden, all requests at the same moment pick the same \
                       address, and the API server refuses all but one";
        let remedy = "set services.order: spread, or use `clusterip serve`, which knows the addresses in flight";
        findings.push(Finding::new(Kind::LowestOrder, message.to_owned(), remedy));
    }
}

fn misplaced(
    settings: &Settings,
    placed: &PlacedService,
    conditions: MoveConditions<'_>,
    placement: &Placement,
) -> Option<Finding> {
    let (id, by_hand) = (placed.service.key(), placed.service.by_hand());
    let pool = placement.pool.as_deref().and_then(|name| settings.pool(name));
    let (kind, wrong, pool, message, remedy) = match (placement.fit, pool) {
        (Fit::InPlace | Fit::NotWhereAssumed, _) | (Fit::Misplaced, None) => return None,
        (Fit::Unmatched, _) => {
            let wrong: Vec<IpAddr> =
                placement.addresses.iter().copied().filter(|address| settings.pool_of(*address).is_some()).collect();
            let hand = if by_hand == Some(true) { "; the address was set by hand" } else { "" };
            let message = format!("{}, and no pool matches it: {}{hand}", places(settings, &wrong), placement.why(id));
            let last = if placement.verdict.is_allocated() && by_hand != Some(true) {
                "let `clusterip move` give it an address outside of all pools"
            } else {
                "create the Service again with an address of no pool"
            };
            let remedy =
                format!("add a pool that matches it, name one with the annotation {POOL_ANNOTATION}, or {last}");
            let pool = wrong.first().and_then(|address| settings.pool_of(*address));
            (Kind::Unmatched, wrong, pool, message, remedy)
        }
        (Fit::Misplaced, Some(pool)) => {
            let wrong: Vec<IpAddr> =
                placement.addresses.iter().copied().filter(|address| !fits(settings, Some(pool), *address)).collect();
            let nowhere = wrong.iter().all(|address| settings.pool_of(*address).is_none());
            let kind = match (nowhere, by_hand) {
                (true, _) => Kind::NoPool,
                (false, Some(true)) => Kind::ByHand,
                (false, _) => Kind::Misplaced,
            };
            let hand = if nowhere && by_hand == Some(true) { "; the address was set by hand" } else { "" };
            // Whether the control plane calls the Service matters only for a Service that could move.
            let callers = match by_hand {
                Some(true) => Vec::new(),
                _ => conditions.called.known_callers(&id.namespace, &id.name),
            };
            let called = if callers.is_empty() { String::new() } else { format!("; it is {}", called_by(&callers)) };
            let message = format!(
                "{}, and it belongs to pool {} ({}): {}{hand}{called}",
                places(settings, &wrong),
                pool.name,
                ranges(pool, &wrong),
                placement.evidence.as_deref().unwrap_or_default()
            );
            let remedy = remedy(&placed.service, !callers.is_empty(), conditions);
            (kind, wrong, Some(pool), message, remedy)
        }
    };
    Some(Finding {
        addresses: wrong,
        pool: pool.map(|pool| pool.name.clone()),
        evidence: placement.evidence.clone(),
        ..Finding::of_service(kind, id, &message, &remedy)
    })
}

const REFUSED: &str = "correct the settings, which `clusterip serve` and `clusterip move` refuse: they don't fit the \
                       Service ranges of the cluster";

/// `is_called` is whether the control plane calls the Service.
fn remedy(service: &StoredService, is_called: bool, conditions: MoveConditions<'_>) -> String {
    if service.by_hand() == Some(true) {
        return "nothing moves it: remove clusterIP from its manifest, or set an address of its pool, and create it \
                again"
            .into();
    }
    if service.asked_move() == Some(Move::Never) {
        return format!("nothing moves it as long as its annotation {MOVE_ANNOTATION} says never");
    }
    if conditions.refused {
        return REFUSED.to_owned();
    }
    let is_load_balancer = service.is_load_balancer();
    let of_command = if is_load_balancer { " --load-balancers" } else { "" };
    if is_called {
        // A server never moves such a Service.
        let moves = format!("`clusterip move{of_command} {MOVE_OPTION} NAMESPACE/NAME` moves it");
        let blocking = conditions.called.known_blocking_webhooks(service, &Snapshot::read(conditions.snapshot), &[]);
        return match blocking.as_slice() {
            [] => format!("{moves}: the control plane can't call it for a moment"),
            blocking => format!("{}; then {moves}", webhook_remedy(blocking)),
        };
    }
    // A load balancer does not move seamlessly.
    let (of_server, of_command) =
        if is_load_balancer { (" --move-load-balancers", of_command) } else { ("", " --seamless") };
    format!(
        "`clusterip move{of_command}` moves it; `clusterip serve{of_server}` moves it by itself if no ready endpoint can be \
         reached at its address"
    )
}

fn half_moved(placed: &PlacedService, refused: bool) -> Finding {
    let finish = if refused {
        format!("{REFUSED}; then they finish a recorded move")
    } else {
        "`clusterip serve` and `clusterip move` finish a recorded move".to_owned()
    };
    let remedy = format!(
        "{finish}; if the move has no record, remove the annotation \
         {MOVING_ANNOTATION}, and set spec.type back if it is ExternalName"
    );
    let found = Finding::of_service(Kind::HalfMoved, placed.service.key(), HALF_MOVED, &remedy);
    Finding { addresses: placed.service.addresses().to_vec(), ..found }
}

fn unusable(settings: &Settings, range: &UnusableRange) -> Finding {
    let pools: Vec<(&Pool, IpNet)> = settings
        .pools
        .iter()
        .flat_map(|pool| pool.cidrs.iter().map(move |cidr| (pool, *cidr)))
        .filter(|(_, cidr)| overlap(*cidr, range.cidr))
        .collect();
    let named: Vec<String> = pools.iter().map(|(pool, cidr)| format!("pool {} ({cidr})", pool.name)).collect();
    let reach = if named.len() == 1 { "has" } else { "have" };
    let concerned =
        if named.is_empty() { String::new() } else { format!("; {} {reach} addresses of it", named.join(", ")) };
    let pool = pools.first().map(|(pool, _)| pool.name.clone());
    let remedy = "wait until the ServiceCIDR is ready, create another one with its range, or remove the range from \
                   the pools";
    Finding { pool, ..Finding::new(Kind::UnusableRange, format!("{}{concerned}", range.why), remedy) }
}

pub(super) fn of_other_webhooks(called: &ControlPlaneServices) -> Vec<Finding> {
    let names = called.other_webhooks().borrow().clone();
    let finding = |name: String| {
        let message = format!("MutatingWebhookConfiguration {name}: {OTHER_WEBHOOK_PROBLEM}");
        let found = Finding::new(Kind::OtherWebhook, message, OTHER_WEBHOOK_REMEDY);
        Finding { webhook_configuration: Some(name), ..found }
    };
    names.into_iter().map(finding).collect()
}

/// The finding for a pool that may assign the usual address of the cluster's DNS, unless it is in use.
pub(super) fn over_dns(settings: &Settings, is_used: impl Fn(IpAddr) -> bool) -> Option<Finding> {
    let dns = settings.unused_dns_address(is_used)?;
    let found = Finding::of_pool(Kind::OverDns, &dns.pool, dns.problem(), DnsAddress::REMEDY);
    Some(Finding { addresses: vec![dns.address], ..found })
}

fn full(settings: &Settings, pool: &Pool, family: Family, sum: &Usage) -> Finding {
    let (name, ranges) = (&pool.name, pool.ranges(family));
    let overlaps = |range: &UnusableRange| pool.cidrs_of(family).any(|cidr| overlap(cidr, range.cidr));
    if sum.usable == 0 && settings.unusable_service_cidrs.iter().any(overlaps) {
        let message = format!("pool {name} ({ranges}) has no address to hand out: the API server refuses all of them");
        return Finding::of_pool(Kind::Full, name, message, "add a range to the pool that the API server accepts");
    }
    let in_flight = if sum.in_flight > 0 { format!(", {} of them in flight", sum.in_flight) } else { String::new() };
    let message = format!(
        "pool {name} ({ranges}) is full: all {} addresses are used{in_flight}, {} more are reserved",
        sum.usable, sum.withheld
    );
    let remedy = "add a range to the pool, or delete Services that are not needed";
    Finding::of_pool(Kind::Full, name, message, remedy)
}

fn places(settings: &Settings, addresses: &[IpAddr]) -> String {
    let place = |address: &IpAddr| match settings.pool_of(*address) {
        Some(pool) => format!("{address} lies in pool {} ({})", pool.name, range_of(pool, *address)),
        None => format!("{address} lies in no pool"),
    };
    joined(addresses.iter().map(place), ", ")
}

fn ranges(pool: &Pool, addresses: &[IpAddr]) -> String {
    let mut families: Vec<Family> = addresses.iter().map(|address| Family::of(*address)).collect();
    families.dedup();
    joined(families.into_iter().map(|family| pool.ranges(family)), ", ")
}

fn range_of(pool: &Pool, address: IpAddr) -> String {
    pool.cidrs.iter().find(|cidr| cidr.contains(&address)).map(ToString::to_string).unwrap_or_default()
}

/// A misplaced Service, with settings that need not be in use.
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
        selector: Option<&LabelSelector>,
    ) -> Self {
        let mut placed = place_all(settings, snapshot, &mut AuditCache::default());
        placed.retain(|placed| selector.is_none_or(|selector| placed.service.is_selected_by(selector)));
        let conditions = MoveConditions { called, snapshot, refused: false };
        let found = placed
            .into_iter()
            .filter_map(|placed| Some((MisplacedService::of(settings, &placed, conditions)?, placed)));
        let (mut services, misplaced): (Vec<_>, Vec<_>) = found.unzip();
        services.sort_by_key(|service: &MisplacedService| service.finding.kind);
        let callers = unknown_callers(called, services.iter().map(|service| &service.finding));
        let notes = unknown_owners(&misplaced).into_iter().chain(callers).collect();
        Self { services, notes }
    }
}

impl MisplacedService {
    fn of(settings: &LiveSettings, placed: &PlacedService, conditions: MoveConditions<'_>) -> Option<Self> {
        let placement = placed.placement.as_ref().as_ref().ok()?;
        let found = of_service(&settings.settings, placed, conditions);
        let is_misplaced = |finding: &Finding| matches!(finding.kind, Kind::Misplaced | Kind::ByHand | Kind::NoPool);
        let finding = found.into_iter().find(is_misplaced)?;
        let service = &placed.service;
        let blocking = conditions.called.known_blocking_webhooks(service, &Snapshot::read(conditions.snapshot), &[]);
        let moves = service.by_hand() != Some(true)
            && service.asked_move() != Some(Move::Never)
            && !service.is_deleting()
            && blocking.is_empty();
        Some(Self { finding, lies_in: placement.lies_in.clone(), moves })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Which addresses are withheld, and why, is tested in the core.
    #[test]
    fn addresses_of_a_range_are_counted_by_state() {
        struct Case {
            name: &'static str,
            pool: serde_json::Value,
            used: &'static [&'static str],
            in_flight: &'static [&'static str],
            expected: Usage,
        }
        let none = Usage::default();
        let cases = [
            Case {
                name: "the network address counts as one of the reserved addresses",
                pool: json!({"cidrs": ["10.0.0.0/29"], "reserved": 3}),
                used: &["10.0.0.2", "10.0.0.4"],
                in_flight: &["10.0.0.5"],
                expected: Usage { usable: 4, used: 1, in_flight: 1, free: 2, withheld: 2, used_anyway: 1, ..none },
            },
            Case {
                name: "an excluded address in the reserved part counts as excluded",
                pool: json!({"cidrs": ["10.0.0.0/28"], "reserved": 6, "exclude": ["10.0.0.4/30"]}),
                used: &["10.0.0.5"],
                in_flight: &["10.0.0.4"],
                expected: Usage { usable: 7, free: 7, withheld: 3, used_anyway: 2, ..none },
            },
            Case {
                name: "addresses reserved for Services",
                pool: json!({"cidrs": ["10.0.0.0/29"], "reserved": 2, "exclude": ["10.0.0.5"], "reservations": [
                    {"address": "10.0.0.1", "namespace": "shop", "name": "a"},
                    {"address": "10.0.0.4", "namespace": "shop", "name": "b"},
                    {"address": "10.0.0.5", "namespace": "shop", "name": "c"},
                ]}),
                used: &["10.0.0.3", "10.0.0.4"],
                in_flight: &["10.0.0.5"],
                expected: Usage { usable: 3, used: 1, free: 2, withheld: 3, used_anyway: 2, ..none },
            },
            Case {
                name: "the address of default/kubernetes",
                pool: json!({"cidrs": ["172.30.0.0/29"]}),
                used: &["172.30.0.1"],
                in_flight: &[],
                expected: Usage { usable: 5, free: 5, used_anyway: 1, ..none },
            },
            Case {
                name: "a range that is full, and an address outside of it",
                pool: json!({"cidrs": ["10.0.0.0/30"]}),
                used: &["10.0.0.1", "10.0.1.1"],
                in_flight: &["10.0.0.2"],
                expected: Usage { usable: 2, used: 1, in_flight: 1, ..none },
            },
            Case {
                name: "a large range, whose last address is usable",
                pool: json!({"cidrs": ["fd00::/64"]}),
                used: &["fd00::ffff:ffff:ffff:ffff"],
                in_flight: &[],
                expected: Usage { usable: (1 << 64) - 1, used: 1, free: (1 << 64) - 2, ..none },
            },
        ];
        for Case { name, mut pool, used, in_flight, expected } in cases {
            pool["name"] = json!("p");
            let mut settings = Settings::from_value(&json!({"services": {"pools": [pool]}})).unwrap();
            settings.service_cidrs = vec!["172.30.0.0/16".parse().unwrap()];
            let address = |text: &&str, state| {
                let address: IpAddr = text.parse().unwrap();
                let (pool, evidence, by_hand) = (None, None, None);
                (
                    address,
                    Address { address, state, namespace: String::new(), name: String::new(), pool, evidence, by_hand },
                )
            };
            let used = used.iter().map(|text| address(text, State::Used));
            let used = used.chain(in_flight.iter().map(|text| address(text, State::InFlight))).collect();
            let pool = &settings.pools[0];
            assert_eq!(range(&settings, pool, pool.cidrs[0], &used).counts, expected, "{name}");
        }
    }
}
