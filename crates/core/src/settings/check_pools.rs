//! How pools go together, whatever they are for.

use ipnet::IpNet;

use super::Mistake;
use super::read::Origin;
use crate::address::overlap;

/// What every pool has.
pub(super) struct Common<'s> {
    pub(super) name: &'s str,
    pub(super) cidrs: &'s [IpNet],
    pub(super) exclude: &'s [IpNet],
}

/// What is asked of each kind of pool beside. Pools are named by their places.
pub(super) trait Kind {
    /// What else is wrong with a range of a pool.
    fn of_range(&self, pool: usize, cidr: IpNet, say: &mut dyn FnMut(String));

    /// Whether a pool surely matches whatever another one does.
    fn covers(&self, pool: usize, other: usize) -> bool;
}

/// Mistakes between values; `origins` has an entry for each pool.
pub(super) fn mistakes(pools: &[Common<'_>], origins: &[Origin], kind: &dyn Kind) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for (index, (pool, origin)) in pools.iter().zip(origins).enumerate() {
        let earlier = &pools[..index];
        let mut say = |path: &str, reason: String| mistakes.push(Mistake { path: path.to_owned(), reason });

        if let Some(twin) = earlier.iter().position(|other| !pool.name.is_empty() && other.name == pool.name) {
            let reason = format!("{:?} is the name of {} already", pool.name, origins[twin].path);
            say(&format!("{}.name", origin.path), reason);
        }
        for (position, (&cidr, path)) in pool.cidrs.iter().zip(&origin.cidrs).enumerate() {
            if let Some(reason) = overlapped(cidr, &pool.cidrs[..position], earlier) {
                say(path, reason);
            }
            kind.of_range(index, cidr, &mut |reason| say(path, reason));
        }
        for (&excluded, path) in pool.exclude.iter().zip(&origin.exclude) {
            if !pool.cidrs.iter().any(|cidr| overlap(*cidr, excluded)) {
                say(path, format!("{excluded} is in no range of the pool"));
            }
        }
        let shadows = |other: &usize| origins[*other].match_is_whole && kind.covers(*other, index);
        if let Some(shadow) = (0..index).find(shadows).filter(|_| origin.match_is_whole) {
            let reason = format!("unreachable: whatever it matches, pool {:?} before it takes", pools[shadow].name);
            say(&format!("{}.match", origin.path), reason);
        }
    }
    mistakes
}

fn overlapped(cidr: IpNet, before: &[IpNet], earlier: &[Common<'_>]) -> Option<String> {
    if let Some(other) = before.iter().find(|other| overlap(**other, cidr)) {
        return Some(format!("{cidr} overlaps {other} of the same pool"));
    }
    earlier.iter().find_map(|pool| {
        let other = pool.cidrs.iter().find(|other| overlap(**other, cidr))?;
        Some(format!("{cidr} overlaps {other} of pool {:?}", pool.name))
    })
}
