//! The pools of an audit as rows, for all reports.

use clusterip_core::address::{Blocks, Occupancy};

use crate::audit::model::{Audit, BlockRange, External, ExternalRange, Nodes, Range, State};
use crate::usage::Usage;

pub(super) struct PoolRows<'a> {
    pub(super) name: &'a str,
    pub(super) ranges: Vec<RangeRow>,
}

pub(super) struct RangeRow {
    pub(super) range: String,
    /// Prefix length of the blocks of a range of a pool of Nodes.
    pub(super) block_length: Option<u8>,
    pub(super) usage: Usage,
    /// How many addresses or blocks are misplaced.
    pub(super) misplaced: u128,
}

pub(super) fn of_services(audit: &Audit) -> Vec<PoolRows<'_>> {
    let pools = audit.pools.iter().map(|pool| {
        let row = |range: &Range| RangeRow {
            range: range.cidr.to_string(),
            block_length: None,
            usage: range.counts,
            misplaced: misplaced(range.addresses.iter().map(|address| address.state)),
        };
        PoolRows { name: &pool.name, ranges: pool.ranges.iter().map(row).collect() }
    });
    pools.collect()
}

pub(super) fn of_nodes(nodes: &Nodes) -> Vec<PoolRows<'_>> {
    let pools = nodes.pools.iter().map(|pool| {
        let row = |range: &BlockRange| RangeRow {
            range: range.cidr.to_string(),
            block_length: Some(range.block_length),
            usage: range.counts,
            misplaced: misplaced_blocks(range),
        };
        PoolRows { name: &pool.name, ranges: pool.ranges.iter().map(row).collect() }
    });
    pools.collect()
}

pub(super) fn of_external(external: &External) -> Vec<PoolRows<'_>> {
    let pools = external.pools.iter().map(|pool| {
        let row = |range: &ExternalRange| RangeRow {
            range: range.range.clone(),
            block_length: None,
            usage: range.counts,
            misplaced: misplaced(range.addresses.iter().map(|address| address.state)),
        };
        PoolRows { name: &pool.name, ranges: pool.ranges.iter().map(row).collect() }
    });
    pools.collect()
}

fn misplaced(states: impl Iterator<Item = State>) -> u128 {
    states.filter(|state| *state == State::Misplaced).count() as u128
}

/// The number of blocks of the range's own block length of which a misplaced block has addresses: several Nodes may
/// have the same block.
fn misplaced_blocks(range: &BlockRange) -> u128 {
    let Ok(blocks) = Blocks::new(range.cidr, range.block_length) else { return 0 };
    let mut found = Occupancy::default();
    let misplaced = range.blocks.iter().filter(|block| block.state == State::Misplaced);
    misplaced.filter_map(|block| blocks.indices(block.block)).for_each(|indices| found.insert(indices));
    found.len()
}
