//! Counts how full the pools of Nodes are.

use clusterip_core::settings::Settings;
use ipnet::IpNet;

use super::block_usage::counts;
use crate::nodes::node_metrics::BlockFill;

/// How full each pool of Nodes is, for each of its families, in the order of the settings. `used` returns the blocks
/// that Nodes have, and is called only if there are pools.
pub fn of(settings: &Settings, used: impl FnOnce() -> Vec<IpNet>) -> Vec<BlockFill> {
    if settings.nodes.pools.is_empty() {
        return Vec::new();
    }
    let used = used();
    let mut fills = Vec::new();
    for pool in &settings.nodes.pools {
        for family in pool.families() {
            let mut fill = BlockFill { pool: pool.name.clone(), family, usable: 0, used: 0, free: 0 };
            for cidr in pool.cidrs_of(family) {
                // Checked settings have no range that can't be cut into blocks.
                let Ok(blocks) = pool.blocks(cidr) else { continue };
                let counts = counts(settings, pool, &blocks, used.iter().copied());
                fill.usable = fill.usable.saturating_add(counts.usable);
                fill.used = fill.used.saturating_add(counts.used).saturating_add(counts.used_anyway);
                fill.free = fill.free.saturating_add(counts.free);
            }
            fills.push(fill);
        }
    }
    fills
}
