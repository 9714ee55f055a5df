//! Findings about Nodes and their blocks.

use clusterip_core::address::Family;
use clusterip_core::nodes::{BlockPlace, place_of};
use clusterip_core::settings::{NodePool, Settings, Withheld};
use ipnet::IpNet;

use super::evaluate::EvaluatedNode;
use crate::audit::model::{self, BlockRange, Finding, Kind};
use crate::joined::joined;
use crate::nodes::block_placement::BlockStanding;

/// The remedy for a Node with a wrong block: the API server refuses to change the blocks of a Node.
const ANEW: &str = "the API server refuses to change the blocks of a Node: drain and delete it, and let its kubelet \
                    register it again";

/// Adds the problems of one Node.
pub fn of_node(settings: &Settings, evaluated: &EvaluatedNode, findings: &mut Vec<Finding>) {
    let placement = &evaluated.placement;
    let own = placement.pool.as_deref().and_then(|name| pool(settings, name));
    if let Some(own) = own.filter(|_| placement.blocks.is_empty()) {
        let message = format!("it has no block, and it belongs to {}", belongs(evaluated, own));
        let remedy = "`clusterip serve` assigns one; if it can't, its log and the Events of the Node say why";
        findings.push(node_finding(Kind::NoBlock, evaluated, Vec::new(), message, remedy));
    }
    for (block, standing) in &placement.blocks {
        let belongs = || match own {
            Some(own) => format!("it belongs to {}", belongs(evaluated, own)),
            None => placement.reason.clone().unwrap_or_else(|| "no pool matches it".to_owned()),
        };
        let (kind, message) = match (standing, place_of(*block, own, settings)) {
            (BlockStanding::Shared(others), _) => {
                (Kind::SharedBlock, format!("{block} has addresses of {}", shared(others)))
            }
            (_, BlockPlace::Right) => continue,
            (_, BlockPlace::OtherPool { pool, .. }) => {
                (Kind::WrongNodePool, format!("{block} {}, and {}", lies(pool, *block), belongs()))
            }
            (_, BlockPlace::PartlyInPool) => {
                let name = own.map(|own| own.name.as_str()).unwrap_or_default();
                (Kind::OutsideNodePool, format!("{block} lies only partly in pool {name}, and {}", belongs()))
            }
            (_, BlockPlace::NoPool) => (Kind::OutsideNodePool, format!("{block} lies in no pool, and {}", belongs())),
            (_, BlockPlace::Withheld { range, why }) => {
                (Kind::WithheldBlock, format!("{block} has addresses of {}", withheld(range, why)))
            }
        };
        findings.push(node_finding(kind, evaluated, vec![*block], message, ANEW));
    }
}

/// Adds the pools without a free block.
pub fn of_pools(settings: &Settings, pools: &[model::NodePool], findings: &mut Vec<Finding>) {
    for (pool, used) in settings.nodes.pools.iter().zip(pools) {
        for family in pool.families() {
            let ranges = used.ranges.iter().filter(|range| Family::of(range.cidr.addr()) == family);
            let ranges: Vec<&BlockRange> = ranges.collect();
            if ranges.iter().any(|range| range.counts.free > 0) {
                continue;
            }
            let sum = |count: fn(&BlockRange) -> u128| {
                ranges.iter().fold(0_u128, |sum, range| sum.saturating_add(count(range)))
            };
            let withheld = match sum(|range| range.counts.withheld) {
                0 => String::new(),
                count => format!(", {count} more are never handed out"),
            };
            let message = format!(
                "node pool {} ({}) is full: Nodes have all {} blocks of /{}{withheld}",
                pool.name,
                joined(ranges.iter().map(|range| range.cidr), ", "),
                sum(|range| range.counts.usable),
                pool.block_size.of(family),
            );
            let remedy = "add a range to the pool, or delete Nodes that no longer exist";
            let found = Finding::new(Kind::FullNodePool, message, remedy);
            findings.push(Finding { pool: Some(pool.name.clone()), ..found });
        }
    }
}

fn node_finding(kind: Kind, evaluated: &EvaluatedNode, blocks: Vec<IpNet>, message: String, remedy: &str) -> Finding {
    Finding {
        node: Some(evaluated.name.clone()),
        blocks,
        pool: evaluated.placement.pool.clone(),
        evidence: evaluated.placement.evidence.clone(),
        ..Finding::new(kind, format!("Node {}: {message}", evaluated.name), remedy)
    }
}

fn pool<'s>(settings: &'s Settings, name: &str) -> Option<&'s NodePool> {
    settings.nodes.pools.iter().find(|pool| pool.name == name)
}

/// Such as `pool linux (172.20.0.0/18): kubernetes.io/os=linux (Node linux-1)`.
fn belongs(evaluated: &EvaluatedNode, own: &NodePool) -> String {
    let evidence = evaluated.placement.evidence.as_deref().unwrap_or("it takes all");
    format!("pool {} ({}): {evidence}", own.name, joined(&own.cidrs, ", "))
}

/// Such as `lies in pool windows (172.20.128.0/17)`.
fn lies(pool: &NodePool, block: IpNet) -> String {
    match pool.cidr_of(block) {
        Some(range) => format!("lies in pool {} ({range})", pool.name),
        None => format!("lies partly in pool {} ({})", pool.name, joined(&pool.cidrs, ", ")),
    }
}

fn shared(others: &[(String, IpNet)]) -> String {
    // A message lists only the first few Nodes: each of the others has a finding of its own.
    const SHOWN: usize = 3;
    let mut words: Vec<String> =
        others.iter().take(SHOWN).map(|(node, theirs)| format!("{theirs} of Node {node}")).collect();
    if others.len() > SHOWN {
        words.push(format!("those of {} more", others.len() - SHOWN));
    }
    words.join(", ")
}

/// Why the blocks of a range are never assigned, in words.
fn withheld(range: IpNet, why: Withheld<'_>) -> String {
    match why {
        Withheld::ServiceRange => format!("the Service range {range}"),
        Withheld::ServicePool(name) => format!("{range} of the pool {name} of Services"),
        Withheld::Excluded => format!("{range}, which is excluded from its pool"),
    }
}
