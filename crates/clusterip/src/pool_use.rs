//! How full the pools are.

use std::net::IpAddr;

use clusterip_core::address::{Candidates, Family};
use clusterip_core::settings::{ExternalSettings, Settings};

/// How full the ranges of a pool are, of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// The name of the pool.
    pub name: String,
    /// One of its families.
    pub family: Family,
    /// How many of the addresses that it may hand out are used.
    pub used: u128,
    /// How many it may hand out.
    pub usable: u128,
    /// How many addresses of its ranges are used, those that it may not hand out too.
    pub occupied: u128,
}

/// How full each pool is, in their order, where these addresses are used.
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

/// The same of the pools of external addresses.
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
    /// Of the addresses that are used `inside` of a pool, those of `family`.
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
