//! How the blocks of a range are used.

use std::ops::RangeInclusive;

use clusterip_core::address::{Blocks, Occupancy};
use clusterip_core::settings::{NodePool, Settings, Withheld};
use ipnet::IpNet;
use serde::Serialize;

/// How many blocks of a range are what. `usable` is `used` and `free` together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// May be handed out.
    pub usable: u128,
    /// Of the usable ones: some Node has an address of them.
    pub used: u128,
    /// Of the usable ones: may be handed out now.
    pub free: u128,
    /// Are never handed out.
    pub withheld: u128,
    /// Of the withheld ones: some Node has an address of them all the same.
    pub beside: u128,
}

/// Why a block is never handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// It has addresses of a Service range of the cluster.
    ServiceRange,
    /// It has addresses of a pool of Services.
    ServicePool,
    /// `exclude` of the pool.
    Excluded,
}

/// Blocks that are never handed out, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// The first.
    pub first: IpNet,
    /// The last.
    pub last: IpNet,
    /// Why.
    pub why: Why,
}

/// Counts the blocks of a range, of which Nodes have these.
pub fn counts(settings: &Settings, pool: &NodePool, blocks: &Blocks, held: impl Iterator<Item = IpNet>) -> Counts {
    let indices = |ranges: &mut dyn Iterator<Item = IpNet>| {
        let mut found = Occupancy::default();
        ranges.filter_map(|range| blocks.indices(range)).for_each(|indices| found.insert(indices));
        found
    };
    let held = indices(&mut { held });
    let withheld = indices(&mut settings.withheld_from(pool).map(|(range, _)| range));
    let mut either = withheld.clone();
    held.ranges().for_each(|range| either.insert(range));
    // All addresses of ::/0 are one more than can be counted.
    let all = blocks.last_index().saturating_add(1);
    let usable = all.saturating_sub(withheld.len());
    let used = either.len().saturating_sub(withheld.len());
    let beside = held.len().saturating_sub(used);
    Counts { usable, used, free: usable.saturating_sub(used), withheld: withheld.len(), beside }
}

/// The blocks of a range that are never handed out, in order, as few spans as there can be. What is so for
/// several reasons has the first.
pub fn withheld(settings: &Settings, pool: &NodePool, blocks: &Blocks) -> Vec<Span> {
    let mut spans: Vec<(RangeInclusive<u128>, Why)> = Vec::new();
    let mut seen = Occupancy::default();
    for why in [Why::ServiceRange, Why::ServicePool, Why::Excluded] {
        let ranges = settings.withheld_from(pool).filter(|(_, reason)| Why::from(*reason) == why);
        let mut new = Occupancy::default();
        for indices in ranges.filter_map(|(range, _)| blocks.indices(range)) {
            seen.gaps(indices).for_each(|gap| new.insert(gap));
        }
        new.ranges().for_each(|range| seen.insert(range));
        spans.extend(new.ranges().map(|range| (range, why)));
    }
    spans.sort_unstable_by_key(|(range, _)| *range.start());
    let span = |(range, why): (RangeInclusive<u128>, Why)| {
        Some(Span { first: blocks.block(*range.start())?, last: blocks.block(*range.end())?, why })
    };
    spans.into_iter().filter_map(span).collect()
}

impl From<Withheld<'_>> for Why {
    fn from(why: Withheld<'_>) -> Self {
        match why {
            Withheld::ServiceRange => Self::ServiceRange,
            Withheld::ServicePool(_) => Self::ServicePool,
            Withheld::Excluded => Self::Excluded,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_is_counted_and_withheld() {
        // Settings of the Services, the pool, blocks of Nodes, what is withheld, and the counts: usable, used,
        // free, withheld, beside.
        type Row = (&'static str, Value, Value, &'static [&'static str], &'static str, [u128; 5]);
        let none = || json!({"pools": []});
        let rows: [Row; 8] = [
            ("nothing is used", none(), json!({"cidrs": ["10.0.0.0/16"]}), &[], "", [256, 0, 256, 0, 0]),
            (
                "blocks, a part of one, a larger range, one twice, and one elsewhere",
                none(),
                json!({"cidrs": ["10.0.0.0/16"]}),
                &["10.0.0.0/24", "10.0.0.0/24", "10.0.1.0/26", "10.0.4.0/22", "10.1.0.0/24", "fd00::/64"],
                "",
                [256, 6, 250, 0, 0],
            ),
            (
                "a Service range, and what is excluded, partly of it",
                json!({"serviceCIDRs": ["10.0.8.0/22"]}),
                json!({"cidrs": ["10.0.0.0/16"], "exclude": ["10.0.11.0/24", "10.0.12.128/25"]}),
                &["10.0.9.0/24", "10.0.12.0/24", "10.0.13.0/24"],
                "10.0.8.0/24-10.0.11.0/24 ServiceRange, 10.0.12.0/24-10.0.12.0/24 Excluded",
                [251, 1, 250, 5, 2],
            ),
            (
                "a pool of Services, which has to be excluded",
                json!({"pools": [{"name": "s", "cidrs": ["10.0.255.0/24"]}]}),
                json!({"cidrs": ["10.0.0.0/16"], "exclude": ["10.0.254.0/23"]}),
                &[],
                "10.0.254.0/24-10.0.254.0/24 Excluded, 10.0.255.0/24-10.0.255.0/24 ServicePool",
                [254, 0, 254, 2, 0],
            ),
            ("full", none(), json!({"cidrs": ["10.0.0.0/23"]}), &["10.0.0.0/16"], "", [2, 2, 0, 0, 0]),
            (
                "a range of one block",
                none(),
                json!({"cidrs": ["10.0.0.0/30"], "blockSize": {"ipv4": 30}}),
                &[],
                "",
                [1, 0, 1, 0, 0],
            ),
            (
                "IPv6, larger than any Node needs",
                json!({"serviceCIDRs": ["fd00::/108"]}),
                json!({"cidrs": ["fd00::/16"], "blockSize": {"ipv6": 128}}),
                &["fd00:1::/64"],
                "fd00::/128-fd00::f:ffff/128 ServiceRange",
                [(1 << 112) - (1 << 20), 1 << 64, (1 << 112) - (1 << 20) - (1 << 64), 1 << 20, 0],
            ),
            (
                "all addresses that there are",
                none(),
                json!({"cidrs": ["::/0"], "blockSize": {"ipv6": 128}}),
                &["::/0"],
                "",
                [u128::MAX, u128::MAX, 0, 0, 0],
            ),
        ];
        for (name, services, mut pool, held, expected, counted) in rows {
            pool["name"] = json!("p");
            let mut document = json!({"services": services, "nodes": {"pools": [pool]}});
            if document["services"]["pools"] == json!([]) {
                document["services"].as_object_mut().unwrap().remove("pools");
            }
            let settings = Settings::from_value(&document).unwrap();
            let pool = &settings.nodes.pools[0];
            let blocks = pool.blocks(pool.cidrs[0]).unwrap();
            let spans = withheld(&settings, pool, &blocks);
            let spans: Vec<String> =
                spans.iter().map(|span| format!("{}-{} {:?}", span.first, span.last, span.why)).collect();
            assert_eq!(spans.join(", "), expected, "{name}");
            let found = counts(&settings, pool, &blocks, held.iter().map(|block| block.parse().unwrap()));
            let Counts { usable, used, free, withheld, beside } = found;
            assert_eq!([usable, used, free, withheld, beside], counted, "{name}");
        }
    }
}
