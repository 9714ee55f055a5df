//! Counts how full the pools are.

use std::net::IpAddr;

use clusterip_core::address::{Candidates, Family};
use clusterip_core::settings::{ExternalSettings, Settings};

/// How full the ranges of a pool are, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// The name of the pool.
    pub name: String,
    /// The family that is counted.
    pub family: Family,
    /// How many of the usable addresses are used.
    pub used: u128,
    /// How many addresses the pool may hand out.
    pub usable: u128,
    /// How many addresses of the ranges are used, including those that the pool may not hand out.
    pub occupied: u128,
}

/// How full each pool is, for each of its families, in the order of the settings. `used` are all addresses in use.
pub fn of(settings: &Settings, used: &[IpAddr]) -> Vec<PoolUse> {
    let mut pools = Vec::new();
    for pool in &settings.pools {
        for family in [Family::V4, Family::V6].into_iter().filter(|family| pool.has(*family)) {
            let inside = used.iter().filter(|address| pool.contains(**address));
            pools.push(PoolUse::new(&pool.name, family, &settings.candidates(pool, family), inside));
        }
    }
    pools
}

/// As [`of`], for the pools of external addresses.
pub fn of_external(settings: &ExternalSettings, used: &[IpAddr]) -> Vec<PoolUse> {
    let mut pools = Vec::new();
    for pool in &settings.pools {
        for family in [Family::V4, Family::V6].into_iter().filter(|family| pool.has(*family)) {
            let inside = used.iter().filter(|address| pool.contains(**address));
            pools.push(PoolUse::new(&pool.name, family, &pool.candidates(family), inside));
        }
    }
    pools
}

impl PoolUse {
    /// Counts the addresses in use that lie `inside` of a pool and are of `family`.
    fn new<'a>(name: &str, family: Family, candidates: &Candidates, inside: impl Iterator<Item = &'a IpAddr>) -> Self {
        let inside: Vec<&IpAddr> = inside.filter(|address| Family::of(**address) == family).collect();
        Self {
            name: name.to_owned(),
            family,
            used: inside.iter().filter(|address| candidates.contains(***address)).count() as u128,
            usable: candidates.count(),
            occupied: inside.len() as u128,
        }
    }
}
