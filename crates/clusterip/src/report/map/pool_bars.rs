//! The pools as rows of the tables at the top of the page.

use crate::audit::model::Audit;
use crate::report::pool_table::{self, PoolRows, RangeRow};
use crate::text::{grouped, thousandths};
use crate::usage::Usage;

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

pub(super) fn pools<'a>(audit: &'a Audit) -> Pools<'a> {
    let mut numbers = 0..;
    let mut pools = |rows: Vec<PoolRows<'a>>, what: &str| -> Vec<Pool<'a>> {
        let pool = |rows: PoolRows<'a>| Pool {
            name: rows.name,
            title: format!("{}{what}", rows.name),
            ranges: rows.ranges.into_iter().map(|row| Range::of(numbers.next().unwrap_or_default(), row)).collect(),
        };
        rows.into_iter().map(pool).collect()
    };
    let services = pools(pool_table::of_services(audit), "");
    let nodes = audit.nodes.as_ref().map(|nodes| pools(pool_table::of_nodes(nodes), ": blocks of Nodes"));
    let external = audit.external.as_ref();
    let external = external.map(|external| pools(pool_table::of_external(external), ": external addresses"));
    Pools { services, nodes, external }
}

impl<'a> Pools<'a> {
    /// All pools in the order of the page's sections.
    pub(super) fn all(&self) -> impl Iterator<Item = &Pool<'a>> {
        self.services.iter().chain(self.nodes.iter().flatten()).chain(self.external.iter().flatten())
    }
}

impl Range {
    fn of(number: usize, RangeRow { range, block_length, usage, misplaced }: RangeRow) -> Self {
        let Usage { usable, used, in_flight, free, withheld, used_anyway, held } = usage;
        let fill = Fill::of(used, in_flight, usable);
        Self {
            number,
            cidr: range,
            block_length,
            used: grouped(used),
            in_flight: grouped(in_flight),
            free: grouped(free),
            usable: grouped(usable),
            withheld: grouped(withheld),
            held: held.map_or_else(|| "not known".to_owned(), grouped),
            used_anyway: grouped(used_anyway),
            misplaced: grouped(misplaced),
            share: fill.share,
            used_width: fill.used,
            in_flight_width: fill.in_flight,
        }
    }
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
