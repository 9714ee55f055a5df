//! Decides which pod CIDRs a Kubernetes Node gets: assigns the next blocks of its pool that the host does not say to be
//! in use, or checks blocks that another program or a person has set.
//!
//! Only a host that sends the blocks in use gets new blocks: the controller, one request at a time. Admission checks
//! blocks and never sets them, because the API server accepts a block that two Nodes have, and a kubelet that registers
//! its Node again would waste one block each time.

use ipnet::IpNet;
use serde_json::Value;

use crate::address::{Family, overlap};
use crate::decision::{Decision, Denial, Report, Verdict, in_words};
use crate::distinct;
use crate::json::{Located, TypeMismatch};
use crate::label_selector::Labels;
use crate::lookups::{Cluster, LookupError};
use crate::service::MAX_FAMILIES;
use crate::settings::{Explicit, NodePool, NodeSettings, Settings, Withheld};
use crate::workload::labelled;

/// The fields of a Node that a decision reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: Labels,
    /// `spec.podCIDR` and `spec.podCIDRs`, without duplicates and without host bits. Values that can't be parsed are
    /// left out: the API server refuses them.
    pub blocks: Vec<IpNet>,
}

impl Node {
    /// Reads the fields of a Node object that is at `path` of a document.
    pub fn read(object: &Value, path: &str) -> Result<Self, TypeMismatch> {
        let object = Located::new(object, path);
        let (metadata, spec) = (object.at("metadata")?, object.at("spec")?);
        Ok(Self {
            name: metadata.text_of("name")?.unwrap_or_default().to_owned(),
            labels: metadata.map_of("labels")?,
            blocks: blocks(spec.text_of("podCIDR")?.into_iter().chain(spec.texts_of("podCIDRs", MAX_FAMILIES + 1)?)),
        })
    }
}

/// The blocks of a Node from `podCIDR` and `podCIDRs`, without duplicates and without host bits. Texts that are not a
/// CIDR are left out.
pub fn blocks<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<IpNet> {
    distinct(texts.filter_map(|text| Some(text.parse::<IpNet>().ok()?.trunc())))
}

/// A Node without blocks gets one of each family of its pool if the host sends `allocation`; otherwise it is left
/// unchanged. Blocks that are new in the request are checked as `nodes.explicit` says.
pub(crate) fn decide(
    node: &Node,
    old: Option<&Node>,
    settings: &Settings,
    allocation: Option<&Allocation>,
    cluster: &dyn Cluster,
) -> Decision {
    let unchanged = |reason: &str| Decision::new(Verdict::Unchanged(reason.to_owned()));
    if settings.nodes.pools.is_empty() {
        return unchanged("the settings have no pool for Nodes");
    }
    let had = |block: &IpNet| old.is_some_and(|old| old.blocks.contains(block));
    let new: Vec<IpNet> = node.blocks.iter().copied().filter(|block| !had(block)).collect();
    // A Node keeps its blocks.
    let allocation = allocation.filter(|_| node.blocks.is_empty());
    if allocation.is_none() {
        if node.blocks.is_empty() {
            return unchanged("pod CIDRs are assigned by the controller of `clusterip serve`, not in admission");
        }
        if new.is_empty() {
            return unchanged("no new pod CIDR");
        }
        if settings.nodes.explicit == Explicit::Allow {
            return unchanged("not set by this policy");
        }
    }
    let own = choose(node, &settings.nodes);
    let mut decision = unchanged("");
    decision.pool = own.map(|pool| pool.name.clone());
    decision.evidence = own.map(|pool| report(node, pool));
    let verdict = match allocation {
        Some(allocation) => assign(node, own, settings, allocation),
        None => check(node, &new, own, settings, cluster, &mut decision.warnings),
    };
    decision.verdict = verdict.about(&format!("Node {}", node.name));
    decision
}

/// The state of the pools of Nodes. The core keeps no blocks between requests: the host passes this state with each
/// request for blocks, and records the blocks that it gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// The blocks in use. An entry may also be a part of a block or a larger range; any order.
    pub held: Vec<IpNet>,
    /// For each range of a pool, the block that was handed out last.
    pub last: Vec<IpNet>,
}

/// Assigns one block of each family of the Node's pool. If one family has no free block, the Node gets no block.
fn assign(node: &Node, own: Option<&NodePool>, settings: &Settings, allocation: &Allocation) -> Verdict {
    let Some(pool) = own else { return Verdict::Unchanged(no_matching_pool(node, &settings.nodes)) };
    let mut blocks = Vec::new();
    for family in pool.families() {
        match next(pool, family, settings, allocation) {
            Some(block) => blocks.push(block),
            None => return Verdict::Denied(full(node, pool, family)),
        }
    }
    Verdict::Assigned(blocks)
}

/// The next free block of a family. The ranges of the pool are tried in order; in a range, the search starts behind the
/// block that was handed out last.
fn next(pool: &NodePool, family: Family, settings: &Settings, allocation: &Allocation) -> Option<IpNet> {
    pool.cidrs_of(family).find_map(|cidr| {
        // Checked settings contain no range that can't be cut into blocks.
        let (blocks, mut used) = settings.withheld_blocks(pool, cidr).ok()?;
        used.extend(allocation.held.iter().filter_map(|held| blocks.indices(*held)));
        let behind = allocation.last.iter().filter_map(|last| blocks.index_behind(*last)).next_back();
        blocks.block(blocks.next_free(&used, behind.unwrap_or(0))?)
    })
}

fn full(node: &Node, pool: &NodePool, family: Family) -> Denial {
    let ranges: Vec<String> = pool.cidrs_of(family).map(|cidr| cidr.to_string()).collect();
    let message = format!(
        "pool {:?} ({}) is full: no block of /{} is free; chosen by {}; add a range to the pool, or delete Nodes that no \
         longer exist",
        pool.name,
        ranges.join(", "),
        pool.block_size.of(family),
        report(node, pool).describe(),
    );
    // The API server uses the same status if a range is full.
    Denial { code: 500, message }
}

/// Checks `blocks`. `nodes.explicit` says whether a wrong block is refused or causes a warning.
fn check(
    node: &Node,
    blocks: &[IpNet],
    own: Option<&NodePool>,
    settings: &Settings,
    cluster: &dyn Cluster,
    warnings: &mut Vec<String>,
) -> Verdict {
    let deny = settings.nodes.explicit == Explicit::Deny;
    let mut wrong: Vec<String> = blocks.iter().filter_map(|block| misplaced(*block, node, own, settings)).collect();
    // Blocks outside of every pool, on a Node that no pool matches, are ignored.
    if own.is_some() || blocks.iter().any(|block| settings.nodes.pools.iter().any(|pool| pool.meets(*block))) {
        match overlapping_nodes(node, blocks, cluster) {
            Ok(overlaps) => wrong.extend(overlaps),
            Err(error) => {
                let texts: Vec<String> = blocks.iter().map(ToString::to_string).collect();
                let unknown = format!("unknown whether another Node has {}: {error}", texts.join(", "));
                // With `warn` a mistake only causes a warning, so a failed look-up is no reason to deny.
                if deny && wrong.is_empty() {
                    let message = format!("{unknown}; {}", error.remedy());
                    return Verdict::Denied(Denial { code: 500, message });
                }
                wrong.push(unknown);
            }
        }
    }
    if deny && !wrong.is_empty() {
        let instead = if own.is_some() { "a free block of the Node's pool" } else { "a block outside all pools" };
        let message = format!("{}; omit podCIDR and podCIDRs, or use {instead}", wrong.join("; "));
        return Verdict::Denied(Denial { code: 403, message });
    }
    warnings.append(&mut wrong);
    Verdict::Unchanged("not set by this policy".to_owned())
}

/// Why a block is in the wrong place; `None` if it is in the right place.
fn misplaced(block: IpNet, node: &Node, own: Option<&NodePool>, settings: &Settings) -> Option<String> {
    let belongs = || match own {
        Some(own) => format!("expected pool {:?}: {}", own.name, report(node, own).describe()),
        None => no_matching_pool(node, &settings.nodes),
    };
    let own_name = || own.map(|own| own.name.as_str()).unwrap_or_default();
    Some(match place_of(block, own, settings) {
        BlockPlace::Right => return None,
        BlockPlace::OtherPool { pool, is_whole } => {
            let lies = if is_whole { "lies in" } else { "lies only partly in" };
            format!("{block} {lies} pool {:?}, {}", pool.name, belongs())
        }
        BlockPlace::Withheld { range, why } => match why {
            Withheld::ServiceRange => format!("{block} overlaps the Service range {range}"),
            Withheld::ServicePool(name) => format!("{block} overlaps {range} of the pool {name:?} of Services"),
            Withheld::Excluded => {
                format!("{block} overlaps {range}, which is excluded from pool {:?}", own_name())
            }
        },
        BlockPlace::PartlyInPool => format!("{block} lies only partly in the Node's pool {:?}", own_name()),
        BlockPlace::NoPool => format!("{block} lies in no pool, {}", belongs()),
    })
}

/// Which of these blocks overlap blocks of other Nodes.
fn overlapping_nodes(node: &Node, blocks: &[IpNet], cluster: &dyn Cluster) -> Result<Vec<String>, LookupError> {
    const SHOWN: usize = 3;
    // Sorted and without duplicates, so that the order of the list does not matter.
    let mut found: Vec<String> = Vec::new();
    cluster.node_blocks(blocks, &mut |name, theirs| {
        for block in blocks.iter().filter(|block| name != node.name && overlap(**block, theirs)) {
            let line = format!("{block} overlaps {theirs} of Node {name}");
            if let Err(place) = found.binary_search(&line) {
                found.insert(place, line);
            }
        }
    })?;
    if found.len() > SHOWN {
        let more = found.len() - SHOWN;
        found.truncate(SHOWN);
        found.push(format!("and {more} more"));
    }
    Ok(found)
}

/// The first pool, in the order of the settings, whose `match` matches the Node's labels.
fn choose<'s>(node: &Node, settings: &'s NodeSettings) -> Option<&'s NodePool> {
    settings.pools.iter().find(|NodePool { matches, .. }| {
        matches.node_labels.iter().all(|(key, value)| labelled(&node.labels, key).as_ref() == Some(value))
            && matches.node_selector.matches(&node.labels)
    })
}

/// The labels of the Node with the keys that these pools match on.
fn matched_labels(node: &Node, pools: &[NodePool]) -> Labels {
    let mut labels = Labels::new();
    for pool in pools {
        let selector = &pool.matches.node_selector;
        let keys = pool.matches.node_labels.keys().chain(selector.match_labels.keys());
        for key in keys.chain(selector.match_expressions.iter().map(|requirement| &requirement.key)) {
            if let Some(value) = labelled(&node.labels, key) {
                labels.insert(key.clone(), value);
            }
        }
    }
    labels
}

/// Why the Node belongs to this pool.
fn report(node: &Node, pool: &NodePool) -> Report {
    let labels = matched_labels(node, std::slice::from_ref(pool));
    let matches = &pool.matches;
    let source = if matches.node_labels.is_empty() && matches.node_selector.is_empty() {
        "default".to_owned()
    } else {
        format!("Node {}", node.name)
    };
    Report { source, labels, mixed: Vec::new() }
}

fn no_matching_pool(node: &Node, settings: &NodeSettings) -> String {
    let labels = matched_labels(node, &settings.pools);
    if labels.is_empty() {
        return "no pool of Nodes matches a Node without their labels".to_owned();
    }
    format!("no pool of Nodes matches {}", in_words(&labels))
}

/// Where a block of a Node lies, compared with the pool that the Node belongs to. Blocks of other Nodes don't matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlace<'s> {
    /// In the Node's pool. If no pool matches the Node: outside of all pools.
    Right,
    /// The block has addresses of this pool, which is not the Node's pool.
    OtherPool {
        pool: &'s NodePool,
        /// Whether one range of the other pool contains the whole block.
        is_whole: bool,
    },
    /// In the Node's pool, but with addresses of a range from which no block is handed out.
    Withheld { range: IpNet, why: Withheld<'s> },
    /// Partly in the Node's pool, and partly in no pool.
    PartlyInPool,
    /// In no pool, although a pool matches the Node.
    NoPool,
}

/// Where `block` lies, for a Node that belongs to the pool `own`.
///
/// The settings guarantee that ranges of pools don't overlap, so at most one pool contains the whole block. A block
/// that is larger than a range may have addresses of several pools. Then [`BlockPlace::OtherPool`] takes precedence
/// over [`BlockPlace::PartlyInPool`]: the order of the pools must not decide whether the conflict is seen.
pub fn place_of<'s>(block: IpNet, own: Option<&NodePool>, settings: &'s Settings) -> BlockPlace<'s> {
    let pools = &settings.nodes.pools;
    if let Some(pool) = pools.iter().find(|pool| pool.cidr_of(block).is_some()) {
        if own != Some(pool) {
            return BlockPlace::OtherPool { pool, is_whole: true };
        }
        let withheld = settings.withheld_from(pool).find(|(range, _)| overlap(*range, block));
        return withheld.map_or(BlockPlace::Right, |(range, why)| BlockPlace::Withheld { range, why });
    }
    if let Some(pool) = pools.iter().find(|pool| own != Some(*pool) && pool.meets(block)) {
        return BlockPlace::OtherPool { pool, is_whole: false };
    }
    match own {
        None => BlockPlace::Right,
        Some(own) if own.meets(block) => BlockPlace::PartlyInPool,
        Some(_) => BlockPlace::NoPool,
    }
}
