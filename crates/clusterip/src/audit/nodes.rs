//! Decides about every Node, counts how the blocks of the pools of Nodes are used, and describes problems.

use std::ops::RangeInclusive;
use std::sync::{Arc, RwLock};

use clusterip_cluster::snapshot::{Snapshot, StoredNode};
use clusterip_core::address::{Blocks, Family, Occupancy};
use clusterip_core::nodes::{BlockPlace, Node};
use clusterip_core::settings::{NodePool, Settings, Withheld};
use ipnet::IpNet;

use super::model::{Block, BlockRange, BlockSpan, Finding, Kind, Nodes, Pool, State, WithheldBlock};
use crate::nodes::held_blocks::{HeldBlocks, NodePlacement, PlacedBlock};
use crate::text::{first_few, joined};
use crate::usage::{self, Usage};

/// Audits the Nodes and adds their problems to `findings`; `None` if the settings have no node pools.
pub(super) fn audit(settings: &Settings, snapshot: &RwLock<Snapshot>, findings: &mut Vec<Finding>) -> Option<Nodes> {
    if settings.nodes.pools.is_empty() {
        return None;
    }
    let placed = place_all(settings, snapshot);
    let block = |node: &NodePlacement<'_>, placed: &PlacedBlock<'_>| Block {
        block: placed.block,
        state: if placed.problem().is_none() { State::Used } else { State::Misplaced },
        node: node.name.clone(),
        pool: node.pool.map(|pool| pool.name.clone()),
        evidence: node.evidence.clone().or_else(|| node.reason.clone()),
    };
    let blocks = placed.iter().flat_map(|node| node.blocks.iter().map(move |placed| block(node, placed)));
    let blocks: Vec<Block> = blocks.collect();
    let pools = settings.nodes.pools.iter().map(|pool| {
        let ranges = pool.cidrs.iter().filter_map(|cidr| range(settings, pool, *cidr, &blocks));
        Pool { name: pool.name.clone(), ranges: ranges.collect() }
    });
    let pools: Vec<Pool<BlockRange>> = pools.collect();
    for node in &placed {
        of_node(node, findings);
    }
    findings.extend(settings.nodes.pools.iter().zip(&pools).flat_map(|(pool, used)| full(pool, used)));
    let with_blocks = placed.iter().filter(|node| !node.blocks.is_empty()).count();
    Some(Nodes { pools, count: placed.len(), with_blocks })
}

fn place_all<'s>(settings: &'s Settings, snapshot: &RwLock<Snapshot>) -> Vec<NodePlacement<'s>> {
    let nodes: Vec<Arc<StoredNode>> = Snapshot::read(snapshot).nodes().cloned().collect();
    let mut held = HeldBlocks::default();
    nodes.iter().for_each(|node| held.learn(&node.name, node.blocks.clone()));
    let placed = |node: &Arc<StoredNode>| {
        let unassigned = Node { name: node.name.clone(), labels: node.labels.clone(), blocks: Vec::new() };
        NodePlacement::of(settings, &unassigned, &node.blocks, &held)
    };
    nodes.iter().map(placed).collect()
}

/// The usage of a range; `None` if it can't be divided into blocks, which validated settings rule out.
fn range(settings: &Settings, pool: &NodePool, cidr: IpNet, blocks: &[Block]) -> Option<BlockRange> {
    let cut = pool.blocks(cidr).ok()?;
    let mut inside: Vec<Block> = blocks.iter().filter(|block| cut.indices(block.block).is_some()).cloned().collect();
    inside.sort_by(|a, b| (a.block, &a.node).cmp(&(b.block, &b.node)));
    Some(BlockRange {
        cidr,
        block_length: pool.block_size.of(Family::of(cidr.addr())),
        counts: Usage::of_blocks(settings, pool, &cut, inside.iter().map(|block| block.block)),
        withheld: withheld(settings, pool, &cut),
        blocks: inside,
    })
}

/// If a block is withheld for several reasons, the first reason in the order of [`WithheldBlock`] counts.
fn withheld(settings: &Settings, pool: &NodePool, blocks: &Blocks) -> Vec<BlockSpan> {
    let mut spans: Vec<(RangeInclusive<u128>, WithheldBlock)> = Vec::new();
    let mut seen = Occupancy::default();
    let reason = |why| match why {
        Withheld::ServiceRange => WithheldBlock::ServiceRange,
        Withheld::ServicePool(_) => WithheldBlock::ServicePool,
        Withheld::Excluded => WithheldBlock::Excluded,
    };
    for why in [WithheldBlock::ServiceRange, WithheldBlock::ServicePool, WithheldBlock::Excluded] {
        let ranges = settings.withheld_from(pool).filter(|(_, withheld)| reason(*withheld) == why);
        let mut new = Occupancy::default();
        for indices in ranges.filter_map(|(range, _)| blocks.indices(range)) {
            seen.gaps(indices).for_each(|gap| new.insert(gap));
        }
        new.ranges().for_each(|range| seen.insert(range));
        spans.extend(new.ranges().map(|range| (range, why)));
    }
    spans.sort_unstable_by_key(|(range, _)| *range.start());
    let span = |(range, why): (RangeInclusive<u128>, WithheldBlock)| {
        Some(BlockSpan { first: blocks.block(*range.start())?, last: blocks.block(*range.end())?, why })
    };
    spans.into_iter().filter_map(span).collect()
}

const ANEW: &str = "the API server refuses to change the blocks of a Node: drain and delete it, and let its kubelet \
                    register it again";

fn of_node(placement: &NodePlacement<'_>, findings: &mut Vec<Finding>) {
    let own = placement.pool;
    let finding = |kind, blocks, message: &str, remedy| Finding {
        blocks,
        pool: own.map(|pool| pool.name.clone()),
        evidence: placement.evidence.clone(),
        ..Finding::of_node(kind, &placement.name, message, remedy)
    };
    let belongs = || match own {
        Some(own) => {
            let evidence = placement.evidence.as_deref().unwrap_or("it takes all");
            format!("it belongs to pool {} ({}): {evidence}", own.name, joined(&own.cidrs, ", "))
        }
        None => placement.reason.clone().unwrap_or_else(|| "no pool matches it".to_owned()),
    };
    if own.is_some() && placement.blocks.is_empty() {
        let remedy = "`clusterip serve` assigns one; if it can't, its log and the Events of the Node say why";
        findings.push(finding(Kind::NoBlock, Vec::new(), &format!("it has no block, and {}", belongs()), remedy));
    }
    for PlacedBlock { block, place, shared_with } in &placement.blocks {
        let (kind, message) = match *place {
            _ if !shared_with.is_empty() => {
                let others = shared_with.iter().map(|(node, theirs)| format!("{theirs} of Node {node}"));
                let others = first_few(others, |more| format!("those of {more} more"));
                (Kind::SharedBlock, format!("{block} has addresses of {others}"))
            }
            BlockPlace::Right => continue,
            BlockPlace::OtherPool { pool, .. } => {
                (Kind::WrongNodePool, format!("{block} {}, and {}", lies(pool, *block), belongs()))
            }
            BlockPlace::PartlyInPool => {
                let name = own.map(|own| own.name.as_str()).unwrap_or_default();
                (Kind::OutsideNodePool, format!("{block} lies only partly in pool {name}, and {}", belongs()))
            }
            BlockPlace::NoPool => (Kind::OutsideNodePool, format!("{block} lies in no pool, and {}", belongs())),
            BlockPlace::Withheld { range, why } => {
                (Kind::WithheldBlock, format!("{block} has addresses of {}", why_withheld(range, why)))
            }
        };
        findings.push(finding(kind, vec![*block], &message, ANEW));
    }
}

fn full(pool: &NodePool, used: &Pool<BlockRange>) -> Vec<Finding> {
    let full = usage::full(used.ranges.iter().map(|range| (Family::of(range.cidr.addr()), range.counts)));
    let finding = |(family, sum): (&Family, &Usage)| {
        let withheld = match sum.withheld {
            0 => String::new(),
            count => format!(", {count} more are never handed out"),
        };
        let cidrs = used.ranges.iter().map(|range| range.cidr).filter(|cidr| Family::of(cidr.addr()) == *family);
        let message = format!(
            "node pool {} ({}) is full: Nodes have all {} blocks of /{}{withheld}",
            pool.name,
            joined(cidrs, ", "),
            sum.usable,
            pool.block_size.of(*family),
        );
        let remedy = "add a range to the pool, or delete Nodes that no longer exist";
        Finding::of_pool(Kind::FullNodePool, &pool.name, message, remedy)
    };
    full.iter().map(finding).collect()
}

fn lies(pool: &NodePool, block: IpNet) -> String {
    match pool.cidr_of(block) {
        Some(range) => format!("lies in pool {} ({range})", pool.name),
        None => format!("lies partly in pool {} ({})", pool.name, joined(&pool.cidrs, ", ")),
    }
}

fn why_withheld(range: IpNet, why: Withheld<'_>) -> String {
    match why {
        Withheld::ServiceRange => format!("the Service range {range}"),
        Withheld::ServicePool(name) => format!("{range} of the pool {name} of Services"),
        Withheld::Excluded => format!("{range}, which is excluded from its pool"),
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
            services: Value,
            pool: Value,
            /// The blocks of Nodes.
            held: &'static [&'static str],
            expected_withheld: &'static str,
            expected_counts: Usage,
        }
        let base = || Case {
            name: "",
            services: json!({}),
            pool: json!({"cidrs": ["10.0.0.0/16"]}),
            held: &[],
            expected_withheld: "",
            expected_counts: Usage::default(),
        };
        let none = Usage::default();
        let cases = [
            Case {
                name: "blocks, a part of one, a larger range, one twice, and one elsewhere",
                held: &["10.0.0.0/24", "10.0.0.0/24", "10.0.1.0/26", "10.0.4.0/22", "10.1.0.0/24", "fd00::/64"],
                expected_counts: Usage { usable: 256, used: 6, free: 250, ..none },
                ..base()
            },
            Case {
                name: "a Service range, and exclusions inside and outside of it",
                services: json!({"serviceCIDRs": ["10.0.8.0/22"]}),
                pool: json!({"cidrs": ["10.0.0.0/16"], "exclude": ["10.0.11.0/24", "10.0.12.128/25"]}),
                held: &["10.0.9.0/24", "10.0.12.0/24", "10.0.13.0/24"],
                expected_withheld: "10.0.8.0/24-10.0.11.0/24 ServiceRange, 10.0.12.0/24-10.0.12.0/24 Excluded",
                expected_counts: Usage { usable: 251, used: 1, free: 250, withheld: 5, used_anyway: 2, ..none },
            },
            Case {
                name: "a pool of Services, which has to be excluded",
                services: json!({"pools": [{"name": "s", "cidrs": ["10.0.255.0/24"]}]}),
                pool: json!({"cidrs": ["10.0.0.0/16"], "exclude": ["10.0.254.0/23"]}),
                expected_withheld: "10.0.254.0/24-10.0.254.0/24 Excluded, 10.0.255.0/24-10.0.255.0/24 ServicePool",
                expected_counts: Usage { usable: 254, free: 254, withheld: 2, ..none },
                ..base()
            },
            Case {
                name: "full",
                pool: json!({"cidrs": ["10.0.0.0/23"]}),
                held: &["10.0.0.0/16"],
                expected_counts: Usage { usable: 2, used: 2, ..none },
                ..base()
            },
            Case {
                name: "a range of one block",
                pool: json!({"cidrs": ["10.0.0.0/30"], "blockSize": {"ipv4": 30}}),
                expected_counts: Usage { usable: 1, free: 1, ..none },
                ..base()
            },
            Case {
                name: "IPv6, larger than any Node needs",
                services: json!({"serviceCIDRs": ["fd00::/108"]}),
                pool: json!({"cidrs": ["fd00::/16"], "blockSize": {"ipv6": 128}}),
                held: &["fd00:1::/64"],
                expected_withheld: "fd00::/128-fd00::f:ffff/128 ServiceRange",
                expected_counts: Usage {
                    usable: (1 << 112) - (1 << 20),
                    used: 1 << 64,
                    free: (1 << 112) - (1 << 20) - (1 << 64),
                    withheld: 1 << 20,
                    ..none
                },
            },
            Case {
                name: "all IPv6 addresses",
                pool: json!({"cidrs": ["::/0"], "blockSize": {"ipv6": 128}}),
                held: &["::/0"],
                expected_counts: Usage { usable: u128::MAX, used: u128::MAX, ..none },
                ..base()
            },
        ];
        for Case { name, services, mut pool, held, expected_withheld, expected_counts } in cases {
            pool["name"] = json!("p");
            let document = json!({"services": services, "nodes": {"pools": [pool]}});
            let settings = Settings::from_value(&document).unwrap();
            let pool = &settings.nodes.pools[0];
            let blocks = pool.blocks(pool.cidrs[0]).unwrap();
            let spans = withheld(&settings, pool, &blocks);
            let spans: Vec<String> =
                spans.iter().map(|span| format!("{}-{} {:?}", span.first, span.last, span.why)).collect();
            assert_eq!(spans.join(", "), expected_withheld, "{name}");
            let found = Usage::of_blocks(&settings, pool, &blocks, held.iter().map(|block| block.parse().unwrap()));
            assert_eq!(found, expected_counts, "{name}");
        }
    }
}
