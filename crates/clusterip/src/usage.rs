//! Counts how full ranges and pools are: of addresses of Services, of external addresses, and of blocks of Nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clusterip_api::ReservationHolder;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_core::address::{Blocks, Candidates, Family, Occupancy};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{ExternalSettings, NodePool, Reservation, Settings};
use ipnet::IpNet;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// How many addresses or blocks of a range or pool are in each state. `usable` is the sum of `used`, `in_flight` and
/// `free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// May be assigned, now or later.
    pub usable: u128,
    /// Usable, and used. A Node that has one address of a block uses the block.
    pub used: u128,
    /// Usable, and in flight: claimed by a server, or kept by a move in progress.
    pub in_flight: u128,
    /// Usable, and free now.
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
    /// Counts the addresses of a range or pool that are used, or in flight if the flag is set. The `candidates` may be
    /// assigned.
    pub fn of_addresses(candidates: &Candidates, addresses: impl IntoIterator<Item = (IpAddr, bool)>) -> Self {
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

    /// Counts the blocks of a range of `pool`. `held` are the blocks that Nodes have.
    pub fn of_blocks(settings: &Settings, pool: &NodePool, blocks: &Blocks, held: impl Iterator<Item = IpNet>) -> Self {
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

    /// All addresses or blocks that are used, usable or not.
    pub fn occupied(&self) -> u128 {
        self.used.saturating_add(self.used_anyway)
    }

    fn add(&mut self, other: &Self) {
        self.usable = self.usable.saturating_add(other.usable);
        self.used = self.used.saturating_add(other.used);
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

/// How full each pool of Services is, for each of its families, in the order of the settings. `used` are all addresses
/// in use.
pub fn of_services(settings: &Settings, used: &[IpAddr]) -> Vec<PoolUsage> {
    let mut pools = Vec::new();
    for pool in &settings.pools {
        for family in [Family::V4, Family::V6].into_iter().filter(|family| pool.has(*family)) {
            let inside = used.iter().filter(|address| Family::of(**address) == family && pool.contains(**address));
            let usage =
                Usage::of_addresses(&settings.candidates(pool, family), inside.map(|address| (*address, false)));
            pools.push(PoolUsage { pool: pool.name.clone(), family, usage });
        }
    }
    pools
}

/// As [`of_services`], for the pools of external addresses. `held` are the addresses that a node holds, if that is
/// known.
pub fn of_external(settings: &ExternalSettings, used: &[IpAddr], held: Option<&BTreeSet<IpAddr>>) -> Vec<PoolUsage> {
    let mut pools = Vec::new();
    for pool in &settings.pools {
        for family in [Family::V4, Family::V6].into_iter().filter(|family| pool.has(*family)) {
            let inside = || {
                let of_family = used.iter().copied().filter(|address| Family::of(*address) == family);
                of_family.filter(|address| pool.contains(*address))
            };
            let held = held.map(|held| inside().filter(|address| held.contains(address)).count() as u128);
            let usage = Usage::of_addresses(&pool.candidates(family), inside().map(|address| (address, false)));
            pools.push(PoolUsage { pool: pool.name.clone(), family, usage: Usage { held, ..usage } });
        }
    }
    pools
}

/// As [`of_services`], for the pools of Nodes. `held` returns the blocks that Nodes have, and is called only if there
/// are pools.
pub fn of_nodes(settings: &Settings, held: impl FnOnce() -> Vec<IpNet>) -> Vec<PoolUsage> {
    if settings.nodes.pools.is_empty() {
        return Vec::new();
    }
    let held = held();
    let mut pools = Vec::new();
    for pool in &settings.nodes.pools {
        for family in pool.families() {
            let mut usage = Usage::default();
            // Checked settings have no range that can't be cut into blocks.
            for blocks in pool.cidrs_of(family).filter_map(|cidr| pool.blocks(cidr).ok()) {
                usage.add(&Usage::of_blocks(settings, pool, &blocks, held.iter().copied()));
            }
            pools.push(PoolUsage { pool: pool.name.clone(), family, usage });
        }
    }
    pools
}

/// Who has the address of a reservation. If it is another Service, also the first one by namespace and name; without
/// it, only an `IPAddress` object shows that the address is used.
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
        None if snapshot.has_ip_address(*address) => (ReservationHolder::Other, None),
        None => (ReservationHolder::Nobody, None),
    }
}

pub(crate) fn plan_json<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    json(serializer, &[("used", usage.used), ("usable", usage.usable)], None)
}

pub(crate) fn services_json<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    let Usage { usable, used, in_flight, free, withheld, used_anyway, .. } = *usage;
    let counts = [("usable", usable), ("used", used), ("inFlight", in_flight), ("free", free)];
    json(serializer, &[&counts[..], &[("reserved", withheld), ("usedAnyway", used_anyway)]].concat(), None)
}

pub(crate) fn external_json<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    let Usage { usable, used, in_flight, free, withheld, used_anyway, held } = *usage;
    let counts = [("usable", usable), ("used", used), ("inFlight", in_flight), ("free", free)];
    json(serializer, &[&counts[..], &[("excluded", withheld), ("usedAnyway", used_anyway)]].concat(), Some(held))
}

pub(crate) fn nodes_json<S: Serializer>(usage: &Usage, serializer: S) -> Result<S::Ok, S::Error> {
    let Usage { usable, used, free, withheld, used_anyway, .. } = *usage;
    let counts =
        [("usable", usable), ("used", used), ("free", free), ("withheld", withheld), ("usedAnyway", used_anyway)];
    json(serializer, &counts, None)
}

/// Writes counts in their order. `held` is `Some` for external addresses, whose holders may be unknown.
fn json<S: Serializer>(serializer: S, counts: &[(&str, u128)], held: Option<Option<u128>>) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (name, count) in counts {
        map.serialize_entry(name, count)?;
    }
    if let Some(held) = held {
        map.serialize_entry("held", &held)?;
    }
    map.end()
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
