//! Decides about a Node: request, settings and allocation state go in, one decision comes out.

use ipnet::IpNet;

use super::assign::{Allocation, assign};
use super::check::check;
use super::object::Node;
use super::pool::{choose, report};
use crate::decision::{Decision, Verdict};
use crate::lookups::Cluster;
use crate::request::Change;
use crate::settings::{Explicit, Settings};

/// Decides about a Node that is created or updated.
///
/// A Node without blocks gets one of each family of its pool if the host sends `allocation`; otherwise it is left
/// unchanged. Blocks that are new in the request are checked as `nodes.explicit` says.
pub fn decide(
    Change { object: node, old }: &Change<Node>,
    settings: &Settings,
    allocation: Option<&Allocation>,
    cluster: &dyn Cluster,
) -> Decision {
    let unchanged = |reason: &str| Decision::new(Verdict::Unchanged(reason.to_owned()));
    if settings.nodes.pools.is_empty() {
        return unchanged("the settings have no pool for Nodes");
    }
    let had = |block: &IpNet| old.as_ref().is_some_and(|old| old.blocks.contains(block));
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
    decision.verdict = match allocation {
        Some(allocation) => assign(node, own, settings, allocation),
        None => check(node, &new, own, settings, cluster, &mut decision.warnings),
    };
    decision
}
