//! Counts how full ranges and pools are: of addresses of Services, of external addresses, and of blocks of Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_api::ReservationHolder;
use clusterip_cluster::snapshot::Snapshot;
use clusterip_core::address::{Blocks, Candidates, Family, Occupancy};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{ExternalPool, ExternalSettings, NodePool, Pool, Reservation, Settings};
use ipnet::IpNet;
use serde::Serialize;
use serde::ser::Serializer;

/// The addresses or blocks of a range or pool. `usable` is the sum of `used`, `in_flight` and `free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// May be assigned, now or later.
    pub usable: u128,
    /// Usable, and used. A Node that has one address of a block uses the block.
    pub used: u128,
    /// Usable, and in flight: claimed by a server, or kept by a move in progress.
    pub in_flight: u128,
    pub free: u128,
    /// Blocks and external addresses that are never assigned. Of the addresses for Services, only those that are kept
    /// for addresses set by hand or reserved for one Service.
    pub withheld: u128,
    /// Used or in flight, but not usable: set by hand, reserved for the Service, or older than the pool.
    pub used_anyway: u128,
    /// External addresses that a living node holds; `None` if unknown.
    pub held: Option<u128>,
}

impl Usage {
    /// Counts addresses that are used, or in flight if the flag is set. The `candidates` may be assigned.
    pub(crate) fn of_addresses(candidates: &Candidates, addresses: impl IntoIterator<Item = (IpAddr, bool)>) -> Self {
        let mut usage = Self { usable: candidates.count(), ..Self::default() };
        for (address, is_in_flight) in addresses {
            match (candidates.contains(address), is_in_flight) {
                (true, true) => usage.in_flight += 1,
                (true, false) => usage.used += 1,
                (false, _) => usage.used_anyway += 1,
            }
        }
        usage.free = usage.usable.saturating_sub(usage.used).saturating_sub(usage.in_flight);
        usage
    }

    pub(crate) fn of_blocks(
        settings: &Settings,
        pool: &NodePool,
        blocks: &Blocks,
        held: impl Iterator<Item = IpNet>,
    ) -> Self {
        let indices = |ranges: &mut dyn Iterator<Item = IpNet>| {
            let mut found = Occupancy::default();
            ranges.filter_map(|range| blocks.indices(range)).for_each(|indices| found.insert(indices));
            found
        };
        let held = indices(&mut { held });
        let withheld = indices(&mut settings.withheld_from(pool).map(|(range, _)| range));
        let mut either = withheld.clone();
        held.ranges().for_each(|range| either.insert(range));
        // The range ::/0 has one address more than u128 can count.
        let all = blocks.last_index().saturating_add(1);
        let usable = all.saturating_sub(withheld.len());
        let used = either.len().saturating_sub(withheld.len());
        let (free, used_anyway) = (usable.saturating_sub(used), held.len().saturating_sub(used));
        Self { usable, used, free, withheld: withheld.len(), used_anyway, ..Self::default() }
    }

    pub fn occupied(&self) -> u128 {
        self.used.saturating_add(self.used_anyway)
    }

    fn add(&mut self, other: &Self) {
        self.usable = self.usable.saturating_add(other.usable);
        self.used = self.used.saturating_add(other.used);
        self.in_flight = self.in_flight.saturating_add(other.in_flight);
        self.free = self.free.saturating_add(other.free);
        self.withheld = self.withheld.saturating_add(other.withheld);
        self.used_anyway = self.used_anyway.saturating_add(other.used_anyway);
    }
}

/// How full the ranges of a pool are, in one family. A plan prints this as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolUsage {
    #[serde(rename = "name")]
    pub pool: String,
    pub family: Family,
    #[serde(flatten, serialize_with = "plan_json")]
    pub usage: Usage,
}

/// The families in which no range has anything free, with the sums of their ranges.
pub(crate) fn full(ranges: impl Iterator<Item = (Family, Usage)>) -> BTreeMap<Family, Usage> {
    let mut sums: BTreeMap<Family, Usage> = BTreeMap::new();
    ranges.for_each(|(family, usage)| sums.entry(family).or_default().add(&usage));
    sums.retain(|_, sum| sum.free == 0);
    sums
}

/// Those of the addresses, which are in ascending order, that a range contains.
pub(crate) fn within<'a>(addresses: &'a [IpAddr], range: &IpNet) -> &'a [IpAddr] {
    let begin = addresses.partition_point(|address| *address < range.network());
    let end = addresses.partition_point(|address| *address <= range.broadcast());
    &addresses[begin..end]
}

/// How full each pool is, for each of its families, in the order of the settings. `used` is in ascending order.
pub fn of_services(settings: &Settings, used: &[IpAddr]) -> Vec<PoolUsage> {
    let usage = |pool: &Pool, family| {
        let ranges = pool.cidrs.iter().filter(|cidr| Family::of(cidr.addr()) == family);
        let inside = ranges.flat_map(|cidr| within(used, cidr));
        Usage::of_addresses(&settings.candidates(pool, family), inside.map(|address| (*address, false)))
    };
    by_family(&settings.pools, |pool| (&pool.name, families(|family| pool.has(family))), usage)
}

/// As [`of_services`]. `held` are the addresses that a node holds, if that is known.
pub fn of_external(settings: &ExternalSettings, used: &[IpAddr], held: Option<&BTreeSet<IpAddr>>) -> Vec<PoolUsage> {
    let usage = |pool: &ExternalPool, family| {
        let is_inside = |address: &&IpAddr| Family::of(**address) == family && pool.contains(**address);
        let inside = || used.iter().filter(is_inside);
        let held = held.map(|held| inside().filter(|address| held.contains(*address)).count() as u128);
        Usage { held, ..Usage::of_addresses(&pool.candidates(family), inside().map(|address| (*address, false))) }
    };
    by_family(&settings.pools, |pool| (&pool.name, families(|family| pool.has(family))), usage)
}

pub fn of_nodes(settings: &Settings, snapshot: &Snapshot) -> Vec<PoolUsage> {
    let held = || snapshot.nodes().flat_map(|node| &node.blocks).copied();
    let usage = |pool: &NodePool, family| {
        let mut usage = Usage::default();
        // Checked settings have no range that can't be cut into blocks.
        for blocks in pool.cidrs_of(family).filter_map(|cidr| pool.blocks(cidr).ok()) {
            usage.add(&Usage::of_blocks(settings, pool, &blocks, held()));
        }
        usage
    };
    by_family(&settings.nodes.pools, |pool| (&pool.name, pool.families()), usage)
}

fn families(has: impl Fn(Family) -> bool) -> Vec<Family> {
    [Family::V4, Family::V6].into_iter().filter(|family| has(*family)).collect()
}

fn by_family<P>(
    pools: &[P],
    of: impl Fn(&P) -> (&String, Vec<Family>),
    usage: impl Fn(&P, Family) -> Usage,
) -> Vec<PoolUsage> {
    let of_pool = |pool: &P| -> Vec<PoolUsage> {
        let (name, families) = of(pool);
        let of_family = |family| PoolUsage { pool: name.clone(), family, usage: usage(pool, family) };
        families.into_iter().map(of_family).collect()
    };
    pools.iter().flat_map(of_pool).collect()
}

/// Who has the address. Another holder without a name is an `IPAddress` object without its Service.
pub(crate) fn reservation_holder<'s>(
    snapshot: &'s Snapshot,
    reservation: &Reservation,
) -> (ReservationHolder, Option<&'s ServiceKey>) {
    let Reservation { address, service } = reservation;
    if snapshot.owners(*address).any(|owner| owner == service) {
        return (ReservationHolder::Owner, None);
    }
    match snapshot.owners(*address).min() {
        Some(other) => (ReservationHolder::Other, Some(other)),
        None if snapshot.is_used(*address) => (ReservationHolder::Other, None),
        None => (ReservationHolder::Nobody, None),
    }
}

pub(crate) fn plan_json<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map([("used", usage.used), ("usable", usage.usable)])
}

pub(crate) fn services_json<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts(usage, "reserved"))
}

pub(crate) fn external_json<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts(usage, "excluded").into_iter().chain([("held", usage.held)]))
}

pub(crate) fn nodes_json<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts(usage, "withheld").into_iter().filter(|(name, _)| *name != "inFlight"))
}

/// The counts with their names; `withheld` is the name of what is withheld.
fn counts(usage: &Usage, withheld: &'static str) -> [(&'static str, Option<u128>); 6] {
    [
        ("usable", Some(usage.usable)),
        ("used", Some(usage.used)),
        ("inFlight", Some(usage.in_flight)),
        ("free", Some(usage.free)),
        (withheld, Some(usage.withheld)),
        ("usedAnyway", Some(usage.used_anyway)),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::settings::Settings;
    use serde_json::json;

    use super::*;

    #[test]
    fn pools_are_counted_by_family() {
        let document = json!({"external": {"pools": [
            {"name": "edge", "cidrs": ["10.0.9.10-10.0.9.19", "fd00:9::/126"], "exclude": ["10.0.9.12"]},
            {"name": "idle", "cidrs": ["10.0.10.0/29"]},
        ]}});
        let settings = Settings::from_value(&document).unwrap().external;
        let addresses = |texts: &[&str]| -> Vec<IpAddr> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let used = addresses(&["10.0.9.10", "10.0.9.11", "fd00:9::1", "10.0.77.1"]);
        let held = addresses(&["10.0.9.10", "fd00:9::1", "10.0.77.1"]).into_iter().collect();
        let found: Vec<_> = of_external(&settings, &used, Some(&held))
            .into_iter()
            .map(|PoolUsage { pool, family, usage }| {
                (pool, family, usage.usable, usage.occupied(), usage.held.unwrap())
            })
            .collect();
        let usable_of_v6 = settings.pools[0].candidates(Family::V6).count();
        let expected = [
            ("edge".to_owned(), Family::V4, 9, 2, 1),
            ("edge".to_owned(), Family::V6, usable_of_v6, 1, 1),
            ("idle".to_owned(), Family::V4, 6, 0, 0),
        ];
        assert_eq!(found, expected);
    }
}
