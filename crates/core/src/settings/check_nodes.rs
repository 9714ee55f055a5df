//! How the pools of Nodes go together, and with those of Services.

use ipnet::IpNet;

use super::check_services::overlaps;
use super::nodes::{NodeMatch, NodePool};
use super::read::Origin;
use super::{Mistake, Settings};

/// Mistakes between values; `origins` has an entry for each pool of Nodes.
pub(super) fn mistakes(settings: &Settings, origins: &[Origin]) -> Vec<Mistake> {
    let pools = &settings.nodes.pools;
    let mut mistakes = Vec::new();
    for (index, (pool, origin)) in pools.iter().zip(origins).enumerate() {
        let earlier = &pools[..index];
        let mut say = |path: String, reason: String| mistakes.push(Mistake { path, reason });

        if let Some(twin) = earlier.iter().position(|other| !pool.name.is_empty() && other.name == pool.name) {
            say(
                format!("{}.name", origin.path),
                format!("{:?} is the name of {} already", pool.name, origins[twin].path),
            );
        }
        for (position, (&cidr, path)) in pool.cidrs.iter().zip(&origin.cidrs).enumerate() {
            if let Some(reason) = overlap(settings, pool, cidr, position, earlier) {
                say(path.clone(), reason);
            }
            match settings.block_allocator(pool, cidr) {
                Err(error) => say(path.clone(), error.to_string()),
                Ok(allocator) if allocator.is_full() => {
                    let reason = "has no block to give: Service ranges, pools of Services and exclude take them all";
                    say(path.clone(), format!("{cidr} {reason}"));
                }
                Ok(_) => {}
            }
        }
        for (&excluded, path) in pool.exclude.iter().zip(&origin.exclude) {
            if !pool.cidrs.iter().any(|cidr| overlaps(*cidr, excluded)) {
                say(path.clone(), format!("{excluded} is in no range of the pool"));
            }
        }
        let shadow = earlier
            .iter()
            .zip(origins)
            .find(|(other, origin)| origin.match_is_whole && other.matches.covers(&pool.matches));
        if let Some((shadow, _)) = shadow.filter(|_| origin.match_is_whole) {
            let reason = format!("unreachable: whatever it matches, pool {:?} before it takes", shadow.name);
            say(format!("{}.match", origin.path), reason);
        }
    }
    mistakes
}

pub(super) fn warnings(settings: &Settings) -> Vec<Mistake> {
    let mut warnings = Vec::new();
    for (index, pool) in settings.nodes.pools.iter().enumerate() {
        for (position, cidr) in pool.cidrs.iter().enumerate() {
            if let Some(range) = settings.service_cidrs.iter().find(|range| overlaps(**range, *cidr)) {
                let reason =
                    format!("{cidr} overlaps the Service range {range}: no Node gets a block with an address of it");
                warnings.push(Mistake { path: format!("nodes.pools[{index}].cidrs[{position}]"), reason });
            }
        }
    }
    warnings
}

/// Another pool that a range overlaps, in words. A Service range is no mistake: its blocks are kept free,
/// as the controller manager of Kubernetes does. A pool of Services is one, unless it is excluded: these
/// settings themselves would give its addresses to both.
fn overlap(settings: &Settings, pool: &NodePool, cidr: IpNet, position: usize, earlier: &[NodePool]) -> Option<String> {
    if let Some(other) = pool.cidrs[..position].iter().find(|other| overlaps(**other, cidr)) {
        return Some(format!("{cidr} overlaps {other} of the same pool"));
    }
    let mut others = earlier.iter().flat_map(|pool| pool.cidrs.iter().map(move |other| (other, pool)));
    if let Some((other, pool)) = others.find(|(other, _)| overlaps(**other, cidr)) {
        return Some(format!("{cidr} overlaps {other} of pool {:?}", pool.name));
    }
    let excluded = |range: &IpNet| pool.exclude.iter().any(|excluded| excluded.contains(range));
    let mut services = settings.pools.iter().flat_map(|pool| pool.cidrs.iter().map(move |other| (other, pool)));
    let (other, pool) = services.find(|(other, _)| overlaps(**other, cidr) && !excluded(other))?;
    Some(format!("{cidr} overlaps {other} of the pool {:?} of Services: exclude it", pool.name))
}

impl NodeMatch {
    /// Whether it surely matches whatever `other` matches: each of its conditions follows from one of
    /// `other`'s. (Selectors are compared, not reasoned about.)
    fn covers(&self, other: &Self) -> bool {
        self.node_labels.iter().all(|(key, value)| other.node_labels.get(key) == Some(value))
            && (self.node_selector.is_empty() || self.node_selector == other.node_selector)
    }
}
