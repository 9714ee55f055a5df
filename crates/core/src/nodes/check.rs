//! Checks blocks that another program or a person has set.

use ipnet::IpNet;

use super::object::Node;
use super::place::{BlockPlace, place_of};
use super::pool::{no_matching_pool, report};
use crate::address::overlap;
use crate::decision::Denial;
use crate::decision::Verdict;
use crate::lookups::{Cluster, LookupError};
use crate::settings::{Explicit, NodePool, Settings, Withheld};

/// Checks `blocks`. `nodes.explicit` says whether a wrong block is refused or causes a warning.
pub(super) fn check(
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
                    let message = format!("Node {}: {unknown}; {}", node.name, error.remedy());
                    return Verdict::Denied(Denial { code: 500, message });
                }
                wrong.push(unknown);
            }
        }
    }
    if deny && !wrong.is_empty() {
        let instead = if own.is_some() { "a free block of the Node's pool" } else { "a block outside all pools" };
        let message = format!("Node {}: {}; omit podCIDR and podCIDRs, or use {instead}", node.name, wrong.join("; "));
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
