//! How full the pools of Nodes are.

use clusterip_core::settings::Settings;
use ipnet::IpNet;

use crate::metrics::nodes::BlockFill;

/// How full each pool of Nodes is, in their order, where Nodes have these blocks. They are asked for only
/// where there are pools.
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
                // Settings that were checked have no range that can't be cut.
                let (Ok(mut all), Ok(blocks)) = (settings.block_allocator(pool, cidr), pool.blocks(cidr)) else {
                    continue;
                };
                let total = blocks.last_index().saturating_add(1);
                let mut taken = clusterip_core::address::BlockAllocator::new(blocks);
                fill.usable = fill.usable.saturating_add(total.saturating_sub(all.held()));
                for block in &used {
                    // Of another range: nothing is used here.
                    let _ = (all.occupy(*block), taken.occupy(*block));
                }
                fill.used = fill.used.saturating_add(taken.held());
                fill.free = fill.free.saturating_add(total.saturating_sub(all.held()));
            }
            fills.push(fill);
        }
    }
    fills
}
