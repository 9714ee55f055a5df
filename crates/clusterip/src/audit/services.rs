//! Decides about every Service, and counts how the addresses of their pools are used.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::{Arc, RwLock};
use std::thread::{available_parallelism, scope};

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::snapshot::{Snapshot, StoredService};
use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::panics;
use clusterip_core::address::{Family, WithheldSpan, Withholding};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{Pool, Settings};
use clusterip_core::{InUse, decide_value};
use clusterip_moves::temporary::looks_temporary;
use ipnet::IpNet;
use serde_json::Value;

use super::model::{Address, Range, Span, State};
use crate::service_placement::{Placement, Skip, as_if_created, skip_reason};
use crate::usage::Usage;

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
        let now = || Arc::new(place(&settings.settings, snapshot, &service.value()));
        cached.map_or_else(now, |(_, cached)| Arc::clone(&cached.placement))
    };
    let threads = available_parallelism().map_or(1, NonZero::get);
    let placements: Vec<Arc<Result<Placement, Skip>>> = scope(|scope| {
        let chunks = services.chunks(services.len().div_ceil(threads).max(1));
        let place_all = |chunk: &[_]| chunk.iter().map(place_one).collect::<Vec<_>>();
        let placed: Vec<_> = chunks.map(|chunk| scope.spawn(panics::joined(move || place_all(chunk)))).collect();
        // A panic of the core ends the audit.
        let joined = placed.into_iter().map(|chunk| chunk.join().unwrap_or_else(|cause| resume_unwind(cause)));
        joined.flatten().collect()
    });
    let placed = services.into_iter().zip(placements).map(|((service, revision), placement)| {
        let placed = PlacedService { service, placement };
        cache.services.insert(placed.service.key().clone(), (revision, placed.clone()));
        placed
    });
    placed.collect()
}

/// Finds out where a Service belongs, even if its pool is full.
pub(super) fn place(settings: &Settings, snapshot: &Arc<RwLock<Snapshot>>, service: &Value) -> Result<Placement, Skip> {
    // A temporary Service ends with its move, and one of them has an address of another pool until then.
    if looks_temporary(service) {
        return Err(Skip::Unmanaged);
    }
    if let Some(skip) = skip_reason(settings, service) {
        return Err(skip);
    }
    let cluster = StoredCluster::with_free_addresses(snapshot, service);
    let decision = decide_value(&as_if_created(service), settings, InUse::default(), &cluster);
    Ok(Placement::of(settings, service, &decision, &cluster))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::audit::model::WithheldReason;

    #[test]
    fn addresses_of_a_range_are_counted_by_state() {
        struct Case {
            name: &'static str,
            pool: serde_json::Value,
            used: &'static [&'static str],
            in_flight: &'static [&'static str],
            expected_kept: &'static str,
            expected_counts: Usage,
        }
        let cases = [
            Case {
                name: "an empty range",
                pool: json!({"cidrs": ["10.0.0.0/29"]}),
                used: &[],
                in_flight: &[],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.7-10.0.0.7 x",
                expected_counts: Usage { usable: 6, free: 6, ..Usage::default() },
            },
            Case {
                name: "the network address counts as one of the reserved addresses",
                pool: json!({"cidrs": ["10.0.0.0/29"], "reserved": 3}),
                used: &["10.0.0.2", "10.0.0.4"],
                in_flight: &["10.0.0.5"],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.1-10.0.0.2 r, 10.0.0.7-10.0.0.7 x",
                expected_counts: Usage {
                    usable: 4,
                    used: 1,
                    in_flight: 1,
                    free: 2,
                    withheld: 2,
                    used_anyway: 1,
                    ..Usage::default()
                },
            },
            Case {
                name: "an excluded address in the reserved part counts as excluded",
                pool: json!({"cidrs": ["10.0.0.0/28"], "reserved": 6, "exclude": ["10.0.0.4/30"]}),
                used: &["10.0.0.5"],
                in_flight: &["10.0.0.4"],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.1-10.0.0.3 r, 10.0.0.4-10.0.0.7 x, 10.0.0.15-10.0.0.15 x",
                expected_counts: Usage { usable: 7, free: 7, withheld: 3, used_anyway: 2, ..Usage::default() },
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
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.1-10.0.0.1 s, 10.0.0.4-10.0.0.5 s, 10.0.0.7-10.0.0.7 x",
                expected_counts: Usage { usable: 3, used: 1, free: 2, withheld: 3, used_anyway: 2, ..Usage::default() },
            },
            Case {
                name: "the address of default/kubernetes",
                pool: json!({"cidrs": ["172.30.0.0/29"]}),
                used: &["172.30.0.1"],
                in_flight: &[],
                expected_kept: "172.30.0.0-172.30.0.1 x, 172.30.0.7-172.30.0.7 x",
                expected_counts: Usage { usable: 5, free: 5, used_anyway: 1, ..Usage::default() },
            },
            Case {
                name: "the last address of an IPv6 range is usable",
                pool: json!({"cidrs": ["fd00::/126"]}),
                used: &["fd00::3", "10.0.0.1"],
                in_flight: &[],
                expected_kept: "fd00::-fd00:: x",
                expected_counts: Usage { usable: 3, used: 1, free: 2, ..Usage::default() },
            },
            Case {
                name: "a range that is full",
                pool: json!({"cidrs": ["10.0.0.0/30"]}),
                used: &["10.0.0.1"],
                in_flight: &["10.0.0.2"],
                expected_kept: "10.0.0.0-10.0.0.0 x, 10.0.0.3-10.0.0.3 x",
                expected_counts: Usage { usable: 2, used: 1, in_flight: 1, ..Usage::default() },
            },
            Case {
                name: "a large range",
                pool: json!({"cidrs": ["fd00::/64"]}),
                used: &[],
                in_flight: &[],
                expected_kept: "fd00::-fd00:: x",
                expected_counts: Usage { usable: (1 << 64) - 1, free: (1 << 64) - 1, ..Usage::default() },
            },
        ];
        for Case { name, mut pool, used, in_flight, expected_kept, expected_counts } in cases {
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
            let found = range(&settings, pool, pool.cidrs[0], &used);
            let why = |span: &Span| match span.why {
                WithheldReason::Reserved => "r",
                WithheldReason::Excluded => "x",
                WithheldReason::ForService => "s",
            };
            let spans: Vec<String> =
                found.withheld.iter().map(|span| format!("{}-{} {}", span.first, span.last, why(span))).collect();
            assert_eq!(spans.join(", "), expected_kept, "{name}");
            assert_eq!(found.counts, expected_counts, "{name}");
        }
    }
}
