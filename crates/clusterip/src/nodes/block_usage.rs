//! Counts how the blocks of a range are used.

use std::ops::RangeInclusive;

use clusterip_core::address::{Blocks, Occupancy};
use clusterip_core::settings::{NodePool, Settings, Withheld};
use ipnet::IpNet;
use serde::Serialize;

/// How many blocks of a range are in which state. `usable` is the sum of `used` and `free`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Blocks that may be handed out, now or later.
    pub usable: u128,
    /// Usable blocks of which a Node has an address.
    pub used: u128,
    /// Usable blocks that may be handed out now.
    pub free: u128,
    /// Blocks that are never handed out.
    pub withheld: u128,
    /// Withheld blocks of which a Node has an address nevertheless.
    pub used_anyway: u128,
}

/// Why a block is never handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Why {
    /// The block has addresses of a Service range of the cluster.
    ServiceRange,
    /// The block has addresses of a pool of Services.
    ServicePool,
    /// The block has addresses that the pool's `exclude` lists.
    Excluded,
}

/// Consecutive blocks that are never handed out, for the same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// The first block.
    pub first: IpNet,
    /// The last block.
    pub last: IpNet,
    /// Why the blocks are never handed out.
    pub why: Why,
}

/// Counts the blocks of a range of `pool`. `held` are the blocks that Nodes have.
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
    // The range ::/0 has one address more than u128 can count.
    let all = blocks.last_index().saturating_add(1);
    let usable = all.saturating_sub(withheld.len());
    let used = either.len().saturating_sub(withheld.len());
    let used_anyway = held.len().saturating_sub(used);
    Counts { usable, used, free: usable.saturating_sub(used), withheld: withheld.len(), used_anyway }
}

/// The blocks of a range that are never handed out, ordered, and in as few spans as possible. If a block is withheld
/// for several reasons, the first reason in the order of [`Why`] counts.
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
    fn blocks_are_counted_and_withheld() {
        struct Case {
            name: &'static str,
            /// The settings of the Services.
            services: Value,
            pool: Value,
            /// The blocks of Nodes.
            held: &'static [&'static str],
            expected_withheld: &'static str,
            expected_counts: Counts,
        }
        let none = || json!({"pools": []});
        let cases = [
            Case {
                name: "nothing is used",
                services: none(),
                pool: json!({"cidrs": ["10.0.0.0/16"]}),
                held: &[],
                expected_withheld: "",
                expected_counts: Counts { usable: 256, used: 0, free: 256, withheld: 0, used_anyway: 0 },
            },
            Case {
                name: "blocks, a part of one, a larger range, one twice, and one elsewhere",
                services: none(),
                pool: json!({"cidrs": ["10.0.0.0/16"]}),
                held: &["10.0.0.0/24", "10.0.0.0/24", "10.0.1.0/26", "10.0.4.0/22", "10.1.0.0/24", "fd00::/64"],
                expected_withheld: "",
                expected_counts: Counts { usable: 256, used: 6, free: 250, withheld: 0, used_anyway: 0 },
            },
            Case {
                name: "a Service range, and exclusions inside and outside of it",
                services: json!({"serviceCIDRs": ["10.0.8.0/22"]}),
                pool: json!({"cidrs": ["10.0.0.0/16"], "exclude": ["10.0.11.0/24", "10.0.12.128/25"]}),
                held: &["10.0.9.0/24", "10.0.12.0/24", "10.0.13.0/24"],
                expected_withheld: "10.0.8.0/24-10.0.11.0/24 ServiceRange, 10.0.12.0/24-10.0.12.0/24 Excluded",
                expected_counts: Counts { usable: 251, used: 1, free: 250, withheld: 5, used_anyway: 2 },
            },
            Case {
                name: "a pool of Services, which has to be excluded",
                services: json!({"pools": [{"name": "s", "cidrs": ["10.0.255.0/24"]}]}),
                pool: json!({"cidrs": ["10.0.0.0/16"], "exclude": ["10.0.254.0/23"]}),
                held: &[],
                expected_withheld: "10.0.254.0/24-10.0.254.0/24 Excluded, 10.0.255.0/24-10.0.255.0/24 ServicePool",
                expected_counts: Counts { usable: 254, used: 0, free: 254, withheld: 2, used_anyway: 0 },
            },
            Case {
                name: "full",
                services: none(),
                pool: json!({"cidrs": ["10.0.0.0/23"]}),
                held: &["10.0.0.0/16"],
                expected_withheld: "",
                expected_counts: Counts { usable: 2, used: 2, free: 0, withheld: 0, used_anyway: 0 },
            },
            Case {
                name: "a range of one block",
                services: none(),
                pool: json!({"cidrs": ["10.0.0.0/30"], "blockSize": {"ipv4": 30}}),
                held: &[],
                expected_withheld: "",
                expected_counts: Counts { usable: 1, used: 0, free: 1, withheld: 0, used_anyway: 0 },
            },
            Case {
                name: "IPv6, larger than any Node needs",
                services: json!({"serviceCIDRs": ["fd00::/108"]}),
                pool: json!({"cidrs": ["fd00::/16"], "blockSize": {"ipv6": 128}}),
                held: &["fd00:1::/64"],
                expected_withheld: "fd00::/128-fd00::f:ffff/128 ServiceRange",
                expected_counts: Counts {
                    usable: (1 << 112) - (1 << 20),
                    used: 1 << 64,
                    free: (1 << 112) - (1 << 20) - (1 << 64),
                    withheld: 1 << 20,
                    used_anyway: 0,
                },
            },
            Case {
                name: "all IPv6 addresses",
                services: none(),
                pool: json!({"cidrs": ["::/0"], "blockSize": {"ipv6": 128}}),
                held: &["::/0"],
                expected_withheld: "",
                expected_counts: Counts { usable: u128::MAX, used: u128::MAX, free: 0, withheld: 0, used_anyway: 0 },
            },
        ];
        for Case { name, services, mut pool, held, expected_withheld, expected_counts } in cases {
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
            assert_eq!(spans.join(", "), expected_withheld, "{name}");
            let found = counts(&settings, pool, &blocks, held.iter().map(|block| block.parse().unwrap()));
            assert_eq!(found, expected_counts, "{name}");
        }
    }
}
