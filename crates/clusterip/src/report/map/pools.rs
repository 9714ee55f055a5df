//! The pools as rows of the tables at the top of the page.

use clusterip_core::address::{Blocks, Occupancy};

use super::number::{grouped, thousandths};
use crate::audit::model::{self, Audit, State};

/// A pool and its ranges.
pub(super) struct Pool<'a> {
    pub(super) name: &'a str,
    /// The title of the pool's section: a pool of Services and one of Nodes may have the same name.
    pub(super) title: String,
    pub(super) ranges: Vec<Range>,
}

/// All pools; those of Nodes and of external addresses only if the settings have any.
pub(super) struct Pools<'a> {
    pub(super) services: Vec<Pool<'a>>,
    pub(super) nodes: Option<Vec<Pool<'a>>>,
    pub(super) external: Option<Vec<Pool<'a>>>,
}

/// A range, which is a row of the table.
pub(super) struct Range {
    /// The index of the range among all ranges of all pools, by which the script finds it.
    pub(super) number: usize,
    pub(super) cidr: String,
    /// Prefix length of the blocks of a range of a node pool.
    pub(super) block_length: Option<u8>,
    pub(super) used: String,
    pub(super) in_flight: String,
    pub(super) free: String,
    pub(super) usable: String,
    /// The number of addresses or blocks that are reserved, withheld or excluded.
    pub(super) withheld: String,
    /// The number of addresses that a living node holds, if known.
    pub(super) held: String,
    /// The number of these that are used nevertheless.
    pub(super) used_anyway: String,
    pub(super) misplaced: String,
    /// The used share of the usable addresses, in words.
    pub(super) share: String,
    /// Width of the used part of the bar, in per cent.
    pub(super) used_width: String,
    /// Width of the in-flight part of the bar, in per cent.
    pub(super) in_flight_width: String,
}

pub(super) fn pools(audit: &Audit) -> Pools<'_> {
    let mut numbers = 0..;
    let mut number = || numbers.next().unwrap_or_default();
    let services = audit.pools.iter().map(|pool| Pool {
        name: &pool.name,
        title: pool.name.clone(),
        ranges: pool.ranges.iter().map(|range| Range::of_services(number(), range)).collect(),
    });
    let services = services.collect();
    let nodes = audit.nodes.as_ref().map(|nodes| {
        let pools = nodes.pools.iter().map(|pool| Pool {
            name: &pool.name,
            title: format!("{}: blocks of Nodes", pool.name),
            ranges: pool.ranges.iter().map(|range| Range::of_nodes(number(), range)).collect(),
        });
        pools.collect()
    });
    let external = audit.external.as_ref().map(|external| {
        let pools = external.pools.iter().map(|pool| Pool {
            name: &pool.name,
            title: format!("{}: external addresses", pool.name),
            ranges: pool.ranges.iter().map(|range| Range::of_external(number(), range)).collect(),
        });
        pools.collect()
    });
    Pools { services, nodes, external }
}

impl<'a> Pools<'a> {
    /// All pools in the order of the page's sections.
    pub(super) fn all(&self) -> impl Iterator<Item = &Pool<'a>> {
        self.services.iter().chain(self.nodes.iter().flatten()).chain(self.external.iter().flatten())
    }
}

impl Range {
    fn of_services(number: usize, range: &model::Range) -> Self {
        let counts = range.counts;
        let misplaced = range.addresses.iter().filter(|address| address.state == State::Misplaced).count();
        let fill = Fill::of(counts.used, counts.in_flight, counts.usable);
        Self {
            number,
            cidr: range.cidr.to_string(),
            block_length: None,
            used: grouped(counts.used),
            in_flight: grouped(counts.in_flight),
            free: grouped(counts.free),
            usable: grouped(counts.usable),
            withheld: grouped(counts.reserved),
            held: String::new(),
            used_anyway: grouped(counts.used_anyway),
            misplaced: grouped(misplaced as u128),
            share: fill.share,
            used_width: fill.used,
            in_flight_width: fill.in_flight,
        }
    }

    fn of_nodes(number: usize, range: &model::BlockRange) -> Self {
        let counts = range.counts;
        let fill = Fill::of(counts.used, 0, counts.usable);
        Self {
            number,
            cidr: range.cidr.to_string(),
            block_length: Some(range.block_length),
            used: grouped(counts.used),
            in_flight: grouped(0),
            free: grouped(counts.free),
            usable: grouped(counts.usable),
            withheld: grouped(counts.withheld),
            held: String::new(),
            used_anyway: grouped(counts.used_anyway),
            misplaced: grouped(misplaced_blocks(range)),
            share: fill.share,
            used_width: fill.used,
            in_flight_width: fill.in_flight,
        }
    }

    fn of_external(number: usize, range: &model::ExternalRange) -> Self {
        let counts = range.counts;
        let misplaced = range.addresses.iter().filter(|address| address.state == State::Misplaced).count();
        let fill = Fill::of(counts.used, counts.in_flight, counts.usable);
        Self {
            number,
            cidr: range.range.clone(),
            block_length: None,
            used: grouped(counts.used),
            in_flight: grouped(counts.in_flight),
            free: grouped(counts.free),
            usable: grouped(counts.usable),
            withheld: grouped(counts.excluded),
            held: counts.held.map_or_else(|| "not known".to_owned(), grouped),
            used_anyway: grouped(counts.used_anyway),
            misplaced: grouped(misplaced as u128),
            share: fill.share,
            used_width: fill.used,
            in_flight_width: fill.in_flight,
        }
    }
}

/// The number of blocks of the range's own block length of which a misplaced block has addresses: several Nodes may
/// have the same block.
fn misplaced_blocks(range: &model::BlockRange) -> u128 {
    let Ok(blocks) = Blocks::new(range.cidr, range.block_length) else { return 0 };
    let mut found = Occupancy::default();
    let misplaced = range.blocks.iter().filter(|block| block.state == State::Misplaced);
    misplaced.filter_map(|block| blocks.indices(block.block)).for_each(|indices| found.insert(indices));
    found.len()
}

/// The widths of a bar in per cent, and its share in words.
struct Fill {
    share: String,
    used: String,
    in_flight: String,
}

impl Fill {
    fn of(used: u128, in_flight: u128, usable: u128) -> Self {
        let taken = thousandths(used.saturating_add(in_flight), usable);
        let used = thousandths(used, usable).min(taken);
        let share = match (taken, usable) {
            (_, 0) => "none usable".to_owned(),
            (0, _) => "empty".to_owned(),
            (1..10, _) => "< 1 %".to_owned(),
            (1000, _) => "full".to_owned(),
            _ => format!("{} %", taken / 10),
        };
        Self { share, used: percent(used), in_flight: percent(taken - used) }
    }
}

fn percent(thousandths: u32) -> String {
    format!("{}.{}", thousandths / 10, thousandths % 10)
}
