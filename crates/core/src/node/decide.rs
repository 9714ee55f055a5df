//! The decision about a Node: request, settings and what is held in, one value out.

use ipnet::IpNet;

use super::allocation::Allocation;
use super::object::Node;
use super::pool::{asked, choose, report};
use crate::address::Family;
use crate::cluster::{Cluster, LookupError};
use crate::decide::{Decision, Denial, Verdict};
use crate::label_selector::Labels;
use crate::request::Change;
use crate::settings::{Explicit, NodePool, Settings, Withheld};

/// Decides about a Node that is created or updated.
///
/// One without blocks gets one of each family of its pool, if `allocation` says what is held; otherwise it
/// is left. Blocks that are new in the request are checked, as `nodes.explicit` says.
pub fn decide(
    node: &Change<Node>,
    settings: &Settings,
    allocation: Option<&Allocation>,
    cluster: &dyn Cluster,
) -> Decision {
    let mut decision =
        Decision { verdict: Verdict::Left(String::new()), pool: None, evidence: None, warnings: Vec::new() };
    decision.verdict = verdict(node, settings, allocation, cluster, &mut decision);
    decision
}

fn verdict(
    Change { object: node, old }: &Change<Node>,
    settings: &Settings,
    allocation: Option<&Allocation>,
    cluster: &dyn Cluster,
    decision: &mut Decision,
) -> Verdict {
    let left = |reason: &str| Verdict::Left(reason.to_owned());
    if settings.nodes.pools.is_empty() {
        return left("no pool in the settings is for Nodes");
    }
    if node.blocks.is_empty() {
        return match allocation {
            Some(allocation) => assign(node, settings, allocation, decision),
            None => left("pod CIDRs are assigned by the controller of `clusterip serve`, not in admission"),
        };
    }
    let had = |block: &&IpNet| old.as_ref().is_some_and(|old| old.blocks.contains(block));
    let new: Vec<IpNet> = node.blocks.iter().filter(|block| !had(block)).copied().collect();
    if new.is_empty() {
        return left("no new pod CIDR");
    }
    if settings.nodes.explicit == Explicit::Allow {
        return left("set by somebody else");
    }
    check(node, &new, settings, cluster, decision)
}

/// One block of each family of the Node's pool: from each range in turn, behind the block handed out last.
fn assign(node: &Node, settings: &Settings, allocation: &Allocation, decision: &mut Decision) -> Verdict {
    let Some(pool) = choose(node, &settings.nodes) else {
        return Verdict::Left(nobodys(node, settings));
    };
    note(node, pool, decision);
    let mut blocks = Vec::new();
    for family in pool.families() {
        match next(pool, family, settings, allocation) {
            Some(block) => blocks.push(block),
            None => return full(node, pool, family, decision),
        }
    }
    Verdict::Assigned(blocks)
}

/// The next free block of a family, in the first range of the pool that has one.
fn next(pool: &NodePool, family: Family, settings: &Settings, allocation: &Allocation) -> Option<IpNet> {
    pool.cidrs_of(family).find_map(|cidr| {
        // Settings that were checked have no range that can't be cut.
        let mut allocator = settings.block_allocator(pool, cidr).ok()?;
        for held in &allocation.held {
            // Of another range: nothing is held here.
            let _ = allocator.occupy(*held);
        }
        allocation.last.iter().for_each(|last| allocator.continue_behind(*last));
        allocator.allocate_next().ok()
    })
}

fn full(node: &Node, pool: &NodePool, family: Family, decision: &Decision) -> Verdict {
    let ranges: Vec<String> = pool.cidrs_of(family).map(|cidr| cidr.to_string()).collect();
    let chosen = decision.evidence.as_ref().map(crate::evidence::Report::describe).unwrap_or_default();
    let message = format!(
        "Node {}: pool {:?} ({}) is full: no block of /{} is free; chosen by {chosen}; add a range to the pool, or \
         delete Nodes that are gone",
        node.name,
        pool.name,
        ranges.join(", "),
        pool.block_size.of(family),
    );
    Verdict::Denied(Denial { code: 500, message })
}

/// Whether blocks that somebody else set are right.
fn check(
    node: &Node,
    blocks: &[IpNet],
    settings: &Settings,
    cluster: &dyn Cluster,
    decision: &mut Decision,
) -> Verdict {
    let own = choose(node, &settings.nodes);
    if let Some(pool) = own {
        note(node, pool, decision);
    }
    let mut wrong: Vec<String> = blocks.iter().filter_map(|block| misplaced(*block, node, own, settings)).collect();
    let deny = settings.nodes.explicit == Explicit::Deny;
    // A block of nobody's Node that lies in no pool is nobody's business.
    let concerns = |block: &IpNet| own.is_some() || settings.nodes.pools.iter().any(|pool| overlaps(pool, *block));
    if blocks.iter().any(concerns) {
        match twins(node, blocks, cluster) {
            Ok(twins) => wrong.extend(twins),
            Err(error) if deny => {
                let message = format!("Node {}: {error}; {}", node.name, error.way_out());
                return Verdict::Denied(Denial { code: 500, message });
            }
            // Where a warning is the worst that can happen, a failed look-up is no reason to deny.
            Err(error) => {
                decision.warnings.push(format!("whether another Node has these blocks is not known: {error}"))
            }
        }
    }
    if deny && !wrong.is_empty() {
        let message = format!(
            "Node {}: {}; leave podCIDR and podCIDRs out, or take a free block of its own pool",
            node.name,
            wrong.join("; ")
        );
        return Verdict::Denied(Denial { code: 403, message });
    }
    decision.warnings.append(&mut wrong);
    Verdict::Left("set by somebody else".to_owned())
}

/// Why a block is not where it should be; nothing where it is.
fn misplaced(block: IpNet, node: &Node, own: Option<&NodePool>, settings: &Settings) -> Option<String> {
    let belongs = || match own {
        Some(own) => {
            let report = report(node, own);
            format!("its own is {:?}: {}", own.name, report.describe())
        }
        None => nobodys(node, settings),
    };
    let pools = &settings.nodes.pools;
    match pools.iter().find(|pool| pool.cidr_of(block).is_some()) {
        Some(pool) if own != Some(pool) => Some(format!("{block} lies in pool {:?}, {}", pool.name, belongs())),
        Some(pool) => {
            settings.withheld_from(pool).find(|(range, _)| meets(*range, block)).map(|(range, why)| match why {
                Withheld::ServiceRange => format!("{block} overlaps the Service range {range}"),
                Withheld::ServicePool(name) => format!("{block} overlaps {range} of the pool {name:?} of Services"),
                Withheld::Excluded => {
                    format!("{block} has addresses of {range}, which is excluded from pool {:?}", pool.name)
                }
            })
        }
        None => match pools.iter().find(|pool| overlaps(pool, block)) {
            Some(pool) => Some(format!("{block} lies only partly in pool {:?}, {}", pool.name, belongs())),
            None => own.map(|_| format!("{block} lies in no pool, {}", belongs())),
        },
    }
}

/// Which of these blocks other Nodes have, or parts of them.
fn twins(node: &Node, blocks: &[IpNet], cluster: &dyn Cluster) -> Result<Vec<String>, LookupError> {
    let mut found: Vec<(IpNet, String, IpNet)> = Vec::new();
    cluster.node_blocks(&mut |name, theirs| {
        if name != node.name {
            let meeting = blocks.iter().filter(|block| meets(**block, theirs));
            found.extend(meeting.map(|block| (*block, name.to_owned(), theirs)));
        }
    })?;
    // In an order of their own, whatever that of the list: and of many the first few.
    found.sort();
    found.dedup();
    const SHOWN: usize = 3;
    let more = found.len().saturating_sub(SHOWN);
    let mut twins: Vec<String> = found
        .iter()
        .take(SHOWN)
        .map(|(block, name, theirs)| format!("{block} overlaps {theirs} of Node {name}"))
        .collect();
    if more > 0 {
        twins.push(format!("and those of {more} more"));
    }
    Ok(twins)
}

/// No pool is for this Node, in words.
fn nobodys(node: &Node, settings: &Settings) -> String {
    let labels = asked(node, settings.nodes.pools.iter());
    format!("no pool of Nodes is for {}", words(&labels))
}

fn words(labels: &Labels) -> String {
    if labels.is_empty() {
        return "one without the labels that pools ask about".to_owned();
    }
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

/// Notes pool and labels for the answer.
fn note(node: &Node, pool: &NodePool, decision: &mut Decision) {
    decision.pool = Some(pool.name.clone());
    decision.evidence = Some(report(node, pool));
}

fn overlaps(pool: &NodePool, block: IpNet) -> bool {
    pool.cidrs.iter().any(|cidr| meets(*cidr, block))
}

fn meets(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}
