//! Findings about Services and their pools.

use std::net::IpAddr;

use clusterip_cluster::lookups::snapshot::{Snapshot, addresses};
use clusterip_cluster::object::text;
use clusterip_cluster::watch::control_plane_services::{ControlPlaneServices, MOVE_OPTION, called_by};
use clusterip_core::address::{Family, Order, overlap};
use clusterip_core::annotations::{MOVE_ANNOTATION, MOVING_ANNOTATION, Move, OS_ANNOTATION, POOL_ANNOTATION};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{DnsAddress, Pool, Settings, UnusableRange, is_outside_service_ranges};
use clusterip_moves::temporary::is_being_deleted;
use ipnet::IpNet;
use serde_json::Value;

use super::AuditInput;
use super::model::{self, Finding, Kind};
use super::services::PlacedService;
use crate::service_placement::{Fit, Placement, Skip, fits, without_subject};
use crate::text::joined;
use crate::usage::{self, Usage};

pub(crate) const OTHER_WEBHOOK_PROBLEM: &str = "the webhook of K2s also gives addresses to Services, and it deletes \
                                                Services of Windows workloads and creates them again";

pub(crate) const OTHER_WEBHOOK_REMEDY: &str = "if `clusterip` gives addresses to the Services of this cluster, run \
                                               `kubectl apply --server-side --force-conflicts -k deploy/k2s`: the API \
                                               server then never calls that webhook";

/// The problems of one Service. `refused` is whether `clusterip move` refuses the settings.
pub(super) fn of_service(
    settings: &Settings,
    placed: &PlacedService,
    called: &ControlPlaneServices,
    refused: bool,
) -> Vec<Finding> {
    let placement = match placed.placement.as_ref() {
        Ok(placement) => placement,
        Err(Skip::Unmanaged) => return Vec::new(),
        Err(Skip::HalfMoved) => return vec![half_moved(placed, refused)],
    };
    let mut findings: Vec<Finding> = misplaced(settings, placed, (called, refused), placement).into_iter().collect();
    if is_being_deleted(&placed.service.value()) {
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
    (called, refused): (&ControlPlaneServices, bool),
    placement: &Placement,
) -> Option<Finding> {
    let (id, by_hand) = (placed.service.key(), placement.by_hand);
    let pool = placement.pool.as_deref().and_then(|name| settings.pool(name));
    match (placement.fit, pool) {
        (Fit::InPlace | Fit::NotWhereAssumed, _) | (Fit::Misplaced, None) => None,
        (Fit::Unmatched, _) => {
            let wrong: Vec<IpAddr> =
                placement.addresses.iter().copied().filter(|address| settings.pool_of(*address).is_some()).collect();
            let why = placement.why(id);
            let hand = if by_hand == Some(true) { "; the address was set by hand" } else { "" };
            let message = format!("{}, and no pool matches it: {why}{hand}", places(settings, &wrong));
            let last = if placement.verdict.is_allocated() && by_hand != Some(true) {
                "let `clusterip move` give it an address outside of all pools"
            } else {
                "create the Service again with an address of no pool"
            };
            let remedy =
                format!("add a pool that matches it, name one with the annotation {POOL_ANNOTATION}, or {last}");
            Some(Finding {
                pool: wrong.first().and_then(|address| settings.pool_of(*address)).map(|pool| pool.name.clone()),
                addresses: wrong,
                evidence: placement.evidence.clone(),
                ..Finding::of_service(Kind::Unmatched, id, &message, &remedy)
            })
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
            let evidence = placement.evidence.clone();
            let hand = if nowhere && by_hand == Some(true) { "; the address was set by hand" } else { "" };
            // Whether the control plane calls the Service matters only for a Service that could move.
            let callers = match by_hand {
                Some(true) => Vec::new(),
                _ => called.known_callers(&id.namespace, &id.name),
            };
            let called = if callers.is_empty() { String::new() } else { format!("; it is {}", called_by(&callers)) };
            let message = format!(
                "{}, and it belongs to pool {} ({}): {}{hand}{called}",
                places(settings, &wrong),
                pool.name,
                ranges(pool, &wrong),
                evidence.as_deref().unwrap_or_default()
            );
            let remedy = remedy(&placed.service.value(), by_hand, !callers.is_empty(), refused);
            Some(Finding {
                addresses: wrong,
                pool: Some(pool.name.clone()),
                evidence,
                ..Finding::of_service(kind, id, &message, &remedy)
            })
        }
    }
}

const REFUSED: &str = "correct the settings, which `clusterip serve` and `clusterip move` refuse: they don't fit the \
                       Service ranges of the cluster";

/// `called` is whether the control plane calls the Service.
fn remedy(service: &Value, by_hand: Option<bool>, called: bool, refused: bool) -> String {
    if by_hand == Some(true) {
        return "nothing moves it: remove clusterIP from its manifest, or set an address of its pool, and create it \
                again"
            .into();
    }
    if Move::of(service) == Some(Move::Never) {
        return format!("nothing moves it as long as its annotation {MOVE_ANNOTATION} says never");
    }
    if refused {
        return REFUSED.to_owned();
    }
    let is_load_balancer = text(service, &["spec", "type"]) == "LoadBalancer";
    let of_command = if is_load_balancer { " --load-balancers" } else { "" };
    if called {
        // A server never moves such a Service.
        return format!(
            "`clusterip move{of_command} {MOVE_OPTION} NAMESPACE/NAME` moves it: the control plane can't call it for a \
             moment"
        );
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
    let message = "it looks as if a move has begun and has not ended";
    let finish = if refused {
        format!("{REFUSED}; then they finish a recorded move")
    } else {
        "`clusterip serve` and `clusterip move` finish a recorded move".to_owned()
    };
    let remedy = format!(
        "{finish}; if the move has no record, remove the annotation \
         {MOVING_ANNOTATION}, and set spec.type back if it is ExternalName"
    );
    let found = Finding::of_service(Kind::HalfMoved, placed.service.key(), message, &remedy);
    Finding { addresses: addresses(&placed.service.value()), ..found }
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
