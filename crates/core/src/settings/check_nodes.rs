//! Checks the pools of Nodes against each other and against the pools of Services.

use ipnet::IpNet;

use super::check_pools::{self, Common, Kind};
use super::nodes::{NodeMatch, NodePool};
use super::read::PoolPaths;
use super::{Mistake, Settings};
use crate::address::overlap;

/// The mistakes in pools of Nodes that contradict each other or the other settings. `paths` has one entry for each
/// pool.
pub(super) fn mistakes(settings: &Settings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let pools = settings.nodes.pools.iter();
    let pools: Vec<Common<'_>> = pools.map(|pool| Common::new(&pool.name, &pool.cidrs, &pool.exclude)).collect();
    check_pools::mistakes(&pools, paths, &OfNodes(settings))
}

struct OfNodes<'s>(&'s Settings);

impl Kind for OfNodes<'_> {
    fn of_range(&self, pool: usize, range: usize, say: &mut dyn FnMut(String)) {
        let pool = &self.0.nodes.pools[pool];
        let cidr = pool.cidrs[range];
        if let Some(reason) = of_services(self.0, pool, cidr) {
            say(reason);
        }
        match self.0.block_allocator(pool, cidr) {
            Err(error) => say(error.to_string()),
            Ok(allocator) if allocator.is_full() => {
                let reason = "has no usable block: all overlap Service ranges, pools of Services or exclude";
                say(format!("{cidr} {reason}"));
            }
            Ok(_) => {}
        }
    }

    fn covers(&self, pool: usize, other: usize) -> bool {
        self.0.nodes.pools[pool].matches.covers(&self.0.nodes.pools[other].matches)
    }
}

pub(super) fn warnings(settings: &Settings) -> Vec<Mistake> {
    let mut warnings = Vec::new();
    for (index, pool) in settings.nodes.pools.iter().enumerate() {
        for (position, cidr) in pool.cidrs.iter().enumerate() {
            if let Some(range) = settings.service_cidrs.iter().find(|range| overlap(**range, *cidr)) {
                let reason =
                    format!("{cidr} overlaps the Service range {range}: blocks that overlap it are not assigned");
                warnings.push(Mistake { path: format!("nodes.pools[{index}].cidrs[{position}]"), reason });
            }
        }
    }
    warnings
}

/// The mistake if a range overlaps a pool of Services that it does not exclude: the settings would give the same
/// addresses to Services and to Nodes. A Service range is not a mistake, because its blocks are skipped, as the
/// Kubernetes controller manager does.
fn of_services(settings: &Settings, pool: &NodePool, cidr: IpNet) -> Option<String> {
    let excluded = |range: &IpNet| pool.exclude.iter().any(|excluded| excluded.contains(range));
    settings.pools.iter().find_map(|services| {
        let other = services.cidrs.iter().find(|other| overlap(**other, cidr) && !excluded(other))?;
        Some(format!("{cidr} overlaps {other} of the pool {:?} of Services: exclude it", services.name))
    })
}

impl NodeMatch {
    /// Whether it certainly matches everything that `other` matches: each of its conditions follows from a condition of
    /// `other`. Selectors are compared for equality only.
    fn covers(&self, other: &Self) -> bool {
        self.node_labels.iter().all(|(key, value)| other.node_labels.get(key) == Some(value))
            && (self.node_selector.is_empty() || self.node_selector == other.node_selector)
    }
}
