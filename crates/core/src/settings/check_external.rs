//! Checks the pools of external addresses against each other and against the ranges of Services and Nodes.

use super::check_pools::{self, Common, Kind};
use super::read::PoolPaths;
use super::{Mistake, Settings};
use crate::address::Span;

/// The mistakes in pools of external addresses that contradict each other or the other settings. `paths` has one entry
/// for each pool.
pub(super) fn mistakes(settings: &Settings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let pools = settings.external.pools.iter();
    let pools: Vec<Common<'_>> = pools.map(|pool| Common::new(&pool.name, &pool.ranges, &pool.exclude)).collect();
    check_pools::mistakes(&pools, paths, &OfExternal(settings))
}

struct OfExternal<'s>(&'s Settings);

impl Kind for OfExternal<'_> {
    fn of_range(&self, pool: usize, range: usize, say: &mut dyn FnMut(String)) {
        let pool = &self.0.external.pools[pool];
        let range = pool.ranges[range];
        if let Some(inside) = of_the_cluster(self.0, &range) {
            say(format!("{range} overlaps {inside}: an address is either inside of the cluster or external"));
        }
        if pool.candidates_in(&range).count() == 0 {
            say(format!("{range} has no usable address: all are excluded"));
        }
    }

    /// Always false: a second pool for the same Services serves those that request one of its addresses.
    fn covers(&self, _: usize, _: usize) -> bool {
        false
    }
}

/// The range of the cluster that `range` overlaps, in words.
fn of_the_cluster(settings: &Settings, range: &Span) -> Option<String> {
    let ranges = settings.service_cidrs.iter().map(|cidr| (cidr, "the Service range", None));
    let services =
        settings.pools.iter().flat_map(|pool| pool.cidrs.iter().map(|cidr| (cidr, "Services", Some(&pool.name))));
    let nodes = settings.nodes.pools.iter();
    let nodes = nodes.flat_map(|pool| pool.cidrs.iter().map(|cidr| (cidr, "Nodes", Some(&pool.name))));
    let (cidr, what, pool) = ranges.chain(services).chain(nodes).find(|(cidr, ..)| Span::from(**cidr).meets(range))?;
    Some(match pool {
        Some(name) => format!("{cidr} of the pool {name:?} of {what}"),
        None => format!("{what} {cidr}"),
    })
}
