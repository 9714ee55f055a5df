//! The pools as the table at the head of the page shows them.

use ipnet::IpNet;

use super::number::{grouped, thousandths};
use crate::audit::model::{self, Audit, State};

/// A pool, and its ranges.
pub(super) struct Pool<'a> {
    pub(super) name: &'a str,
    pub(super) ranges: Vec<Range>,
}

/// A range: a row of the table.
pub(super) struct Range {
    /// Its place among all ranges of all pools: the script finds it by that.
    pub(super) number: usize,
    pub(super) cidr: IpNet,
    pub(super) used: String,
    pub(super) claimed: String,
    pub(super) free: String,
    pub(super) usable: String,
    pub(super) reserved: String,
    pub(super) misplaced: String,
    /// How much of the usable addresses is taken, in words.
    pub(super) share: String,
    /// Of the bar, in per cent.
    pub(super) used_width: String,
    /// Of the bar, in per cent.
    pub(super) claimed_width: String,
}

pub(super) fn pools(audit: &Audit) -> Vec<Pool<'_>> {
    let mut numbers = 0..;
    let mut numbered = |range| Range::new(numbers.next().unwrap_or_default(), range);
    let pools = audit.pools.iter();
    pools.map(|pool| Pool { name: &pool.name, ranges: pool.ranges.iter().map(&mut numbered).collect() }).collect()
}

impl Range {
    fn new(number: usize, range: &model::Range) -> Self {
        let counts = range.counts;
        let misplaced = range.addresses.iter().filter(|address| address.state == State::Misplaced).count();
        let taken = thousandths(counts.used.saturating_add(counts.claimed), counts.usable);
        let used = thousandths(counts.used, counts.usable).min(taken);
        Self {
            number,
            cidr: range.cidr,
            used: grouped(counts.used),
            claimed: grouped(counts.claimed),
            free: grouped(counts.free),
            usable: grouped(counts.usable),
            reserved: grouped(counts.reserved),
            misplaced: grouped(misplaced as u128),
            share: match (taken, counts.usable) {
                (_, 0) => "none usable".to_owned(),
                (0, _) => "empty".to_owned(),
                (1..10, _) => "< 1 %".to_owned(),
                (1000, _) => "full".to_owned(),
                _ => format!("{} %", taken / 10),
            },
            used_width: percent(used),
            claimed_width: percent(taken - used),
        }
    }
}

fn percent(thousandths: u32) -> String {
    format!("{}.{}", thousandths / 10, thousandths % 10)
}
