//! How the pools of Services go together.

use ipnet::IpNet;

use super::read::Origin;
use super::{Match, Mistake, Pool, Settings, WhenFull};
use crate::address::Family;
use crate::label_selector::LabelSelector;
use crate::pod_spec::OS_LABEL;

/// Mistakes between values; `origins` has an entry for each pool.
pub(super) fn mistakes(settings: &Settings, origins: &[Origin]) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for (index, (pool, origin)) in settings.pools.iter().zip(origins).enumerate() {
        let earlier = &settings.pools[..index];
        let mut say = |path: String, reason: String| mistakes.push(Mistake { path, reason });

        if let Some(twin) = earlier.iter().position(|other| !pool.name.is_empty() && other.name == pool.name) {
            say(
                format!("{}.name", origin.path),
                format!("{:?} is the name of {} already", pool.name, origins[twin].path),
            );
        }
        for (position, (&cidr, path)) in pool.cidrs.iter().zip(&origin.cidrs).enumerate() {
            if let Some(reason) = overlap(cidr, &pool.cidrs[..position], earlier) {
                say(path.clone(), reason);
            }
            if let Some(reason) = outside(cidr, &settings.service_cidrs) {
                say(path.clone(), reason);
            }
            if settings.usable_of(pool, cidr) == 0 {
                let reason = "has no usable address: network and broadcast address, reserved and exclude take them all";
                say(path.clone(), format!("{cidr} {reason}"));
            }
        }
        for (&excluded, path) in pool.exclude.iter().zip(&origin.exclude) {
            if !pool.cidrs.iter().any(|cidr| overlaps(*cidr, excluded)) {
                say(path.clone(), format!("{excluded} is in no range of the pool"));
            }
        }
        let shadows = |(other, whole): &(&Pool, bool)| *whole && other.matches.covers(&pool.matches);
        let whole = origins.iter().map(|origin| origin.match_is_whole);
        if let Some((shadow, _)) = earlier.iter().zip(whole).find(shadows)
            && origin.match_is_whole
        {
            let reason = format!("unreachable: whatever it matches, pool {:?} before it takes", shadow.name);
            say(format!("{}.match", origin.path), reason);
        }
    }
    mistakes
}

pub(super) fn warnings(settings: &Settings) -> Vec<Mistake> {
    let mut warnings = Vec::new();
    if !settings.pools.iter().any(|pool| pool.matches.node_labels.contains_key(OS_LABEL)) {
        return warnings;
    }
    let mut warn = |path: &str, reason: String| warnings.push(Mistake { path: path.into(), reason });
    if settings.when_full == WhenFull::Unmanaged {
        warn(
            "services.whenFull",
            "unmanaged beside pools by os: what Kubernetes picks itself may lie in any pool".into(),
        );
    }
    let mut rest = Match::default();
    rest.node_labels.insert(OS_LABEL.into(), settings.assume_os.clone());
    if !settings.pools.iter().any(|pool| pool.matches.covers(&rest)) {
        let reason = format!(
            "no pool takes the rest (Services of which nothing is known but assumeOS {:?}): what Kubernetes picks itself may lie in any pool",
            settings.assume_os
        );
        warn("services.pools", reason);
    }
    warnings
}

impl Settings {
    /// How many addresses of one range of a pool can be handed out.
    fn usable_of(&self, pool: &Pool, cidr: IpNet) -> u128 {
        let alone = Pool { cidrs: vec![cidr], ..pool.clone() };
        self.candidates(&alone, Family::of(cidr.addr())).count()
    }
}

impl Match {
    /// Whether it surely matches whatever `other` matches: each of its conditions follows from one of
    /// `other`'s. (Selectors are compared, not reasoned about.)
    fn covers(&self, other: &Self) -> bool {
        let namespaces = self.namespaces.is_empty()
            || (!other.namespaces.is_empty() && other.namespaces.iter().all(|name| self.namespaces.contains(name)));
        let follows = |mine: &LabelSelector, theirs| mine.is_empty() || mine == theirs;
        self.node_labels.iter().all(|(key, value)| other.node_labels.get(key) == Some(value))
            && namespaces
            && follows(&self.namespace_selector, &other.namespace_selector)
            && follows(&self.service_selector, &other.service_selector)
    }
}

/// Whether two ranges have an address in common.
pub(super) fn overlaps(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

fn overlap(cidr: IpNet, before: &[IpNet], earlier: &[Pool]) -> Option<String> {
    if let Some(other) = before.iter().find(|other| overlaps(**other, cidr)) {
        return Some(format!("{cidr} overlaps {other} of the same pool"));
    }
    let (other, pool) = earlier
        .iter()
        .flat_map(|pool| pool.cidrs.iter().map(move |other| (other, pool)))
        .find(|(other, _)| overlaps(**other, cidr))?;
    Some(format!("{cidr} overlaps {other} of pool {:?}", pool.name))
}

fn outside(cidr: IpNet, service_cidrs: &[IpNet]) -> Option<String> {
    if service_cidrs.is_empty() || service_cidrs.iter().any(|range| range.contains(&cidr)) {
        return None;
    }
    let ranges: Vec<String> = service_cidrs.iter().map(ToString::to_string).collect();
    Some(format!("{cidr} lies outside serviceCIDRs ({}): the API server would refuse its addresses", ranges.join(", ")))
}
