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
