//! Counts how full the pools are, for the status of pool objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_api::{AddressCounts, Blocks, PoolAddresses, ReservationHolder};
use clusterip_cluster::evaluator::Evaluator;
use clusterip_core::address::Family;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Pool;

use crate::usage::{self, PoolUsage};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolCounts {
    pub(super) services: BTreeMap<String, PoolAddresses>,
    pub(super) external: BTreeMap<String, PoolAddresses>,
    pub(super) nodes: BTreeMap<String, Blocks>,
    /// Who has the addresses that a pool keeps for single Services, in the order of the settings.
    pub(super) reservations: BTreeMap<String, Vec<(IpAddr, ReservationHolder)>>,
    pub(super) outside: BTreeSet<ServiceKey>,
}

pub(super) fn count(evaluator: &Evaluator, misplaced: &BTreeSet<ServiceKey>) -> PoolCounts {
    let live = evaluator.settings();
    let settings = &live.settings;
    let used: Vec<IpAddr> = evaluator.stores().read_snapshot().addresses().collect();
    // There may be many pools and addresses, so they are compared while the snapshot is not locked.
    let mut in_no_pool: BTreeSet<&IpAddr> = used.iter().collect();
    for address in settings.pools.iter().flat_map(|pool| &pool.cidrs).flat_map(|cidr| usage::within(&used, cidr)) {
        in_no_pool.remove(address);
    }
    let snapshot = evaluator.stores().read_snapshot();
    let reserved: Vec<IpAddr> = evaluator.ledger().reservations().into_iter().map(|(address, _)| address).collect();
    let in_flight = |used: &[IpAddr]| -> Vec<IpAddr> {
        reserved.iter().copied().filter(|address| used.binary_search(address).is_err()).collect()
    };
    let wrong = misplaced.iter().filter_map(|key| snapshot.service(key));
    let mut wrong: Vec<IpAddr> = wrong.flat_map(|service| service.addresses()).copied().collect();
    wrong.sort_unstable();
    let is_managed = |key: &&ServiceKey| settings.exemption(&key.namespace, &key.name).is_none();
    let owners = in_no_pool.iter().flat_map(|address| snapshot.owners(**address));
    let outside: BTreeSet<ServiceKey> = owners.filter(is_managed).cloned().collect();
    let mut external: Vec<IpAddr> = snapshot.external_of_pools(&settings.external).collect();
    let holders = |pool: &Pool| -> Vec<(IpAddr, ReservationHolder)> {
        let of_each = pool.reservations.iter();
        of_each.map(|reservation| (reservation.address, usage::reservation_holder(&snapshot, reservation).0)).collect()
    };
    let reservations = settings.pools.iter().map(|pool| (pool.name.clone(), holders(pool))).collect();
    let blocks = usage::of_nodes(settings, &snapshot);
    drop(snapshot);
    external.sort_unstable();
    external.dedup();

    let mut nodes: BTreeMap<String, Blocks> = BTreeMap::new();
    for fill in blocks {
        let first = Blocks { usable: i64::MAX, used: 0, free: i64::MAX };
        let of_pool = nodes.entry(fill.pool).or_insert(first);
        of_pool.used = of_pool.used.saturating_add(number(fill.usage.occupied()));
        if number(fill.usage.free) < of_pool.free {
            (of_pool.usable, of_pool.free) = (number(fill.usage.usable), number(fill.usage.free));
        }
    }
    let services = [&used, &in_flight(&used), &wrong].map(|addresses| usage::of_services(settings, addresses));
    let external = [&external, &in_flight(&external), &Vec::new()]
        .map(|addresses| usage::of_external(&settings.external, addresses, None));
    PoolCounts { services: by_name(services), external: by_name(external), nodes, reservations, outside }
}

/// The usage of the same pools by the addresses that are used, in flight, and misplaced.
fn by_name([used, in_flight, misplaced]: [Vec<PoolUsage>; 3]) -> BTreeMap<String, PoolAddresses> {
    let mut counts: BTreeMap<String, PoolAddresses> = BTreeMap::new();
    for ((pool, in_flight), misplaced) in used.into_iter().zip(in_flight).zip(misplaced) {
        // As in an audit, an address that the pool does not hand out is not in flight.
        let in_flight = in_flight.usage.used;
        let of_family = AddressCounts {
            usable: number(pool.usage.usable),
            used: number(pool.usage.occupied()),
            free: number(pool.usage.free.saturating_sub(in_flight)),
            in_flight: number(in_flight),
            misplaced: number(misplaced.usage.occupied()),
        };
        let first = PoolAddresses { free: i64::MAX, ..PoolAddresses::default() };
        let of_pool = counts.entry(pool.pool).or_insert(first);
        of_pool.used = of_pool.used.saturating_add(of_family.used);
        of_pool.free = of_pool.free.min(of_family.free);
        of_pool.misplaced = of_pool.misplaced.saturating_add(of_family.misplaced);
        match pool.family {
            Family::V4 => of_pool.ipv4 = Some(of_family),
            Family::V6 => of_pool.ipv6 = Some(of_family),
        }
    }
    counts
}

/// A number as the API has it: at most 2^63 - 1.
fn number(count: u128) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
