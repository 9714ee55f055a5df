//! Checks that all kinds of pools share.

use super::Mistake;
use super::read::PoolPaths;
use crate::address::Span;

/// The fields that all kinds of pools share.
pub(super) struct Common<'s> {
    pub(super) name: &'s str,
    pub(super) ranges: Vec<Span>,
    pub(super) exclude: Vec<Span>,
}

impl<'s> Common<'s> {
    pub(super) fn new<R: Copy + Into<Span>>(name: &'s str, ranges: &[R], exclude: &[R]) -> Self {
        let spans = |ranges: &[R]| ranges.iter().copied().map(Into::into).collect();
        Self { name, ranges: spans(ranges), exclude: spans(exclude) }
    }
}

/// The checks that differ between kinds of pools. Pools and their ranges are given by index.
pub(super) trait Kind {
    /// Calls `say` for each further mistake of a range.
    fn of_range(&self, pool: usize, range: usize, say: &mut dyn FnMut(String));

    /// Whether a pool certainly matches everything that another one matches.
    fn covers(&self, pool: usize, other: usize) -> bool;
}

/// The mistakes in pools that contradict each other or the other settings. `paths` has one entry for each pool.
pub(super) fn mistakes(pools: &[Common<'_>], paths: &[PoolPaths], kind: &dyn Kind) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    for (index, (pool, pool_paths)) in pools.iter().zip(paths).enumerate() {
        let earlier = &pools[..index];
        let mut say = |path: &str, reason: String| mistakes.push(Mistake { path: path.to_owned(), reason });

        if let Some(other) = earlier.iter().position(|other| !pool.name.is_empty() && other.name == pool.name) {
            let reason = format!("{:?} is already the name of {}", pool.name, paths[other].path);
            say(&format!("{}.name", pool_paths.path), reason);
        }
        for (position, (range, path)) in pool.ranges.iter().zip(&pool_paths.cidrs).enumerate() {
            if let Some(reason) = overlapped(range, &pool.ranges[..position], earlier) {
                say(path, reason);
            }
            kind.of_range(index, position, &mut |reason| say(path, reason));
        }
        for (excluded, path) in pool.exclude.iter().zip(&pool_paths.exclude) {
            if !pool.ranges.iter().any(|range| range.meets(excluded)) {
                say(path, format!("{excluded} is in no range of the pool"));
            }
        }
        let shadows = |other: &usize| paths[*other].match_is_whole && kind.covers(*other, index);
        if let Some(shadow) = (0..index).find(shadows).filter(|_| pool_paths.match_is_whole) {
            let reason =
                format!("never used: pool {:?}, which is tried first, matches the same or more", pools[shadow].name);
            say(&format!("{}.match", pool_paths.path), reason);
        }
    }
    mistakes
}

fn overlapped(range: &Span, before: &[Span], earlier: &[Common<'_>]) -> Option<String> {
    if let Some(other) = before.iter().find(|other| other.meets(range)) {
        return Some(format!("{range} overlaps {other} of the same pool"));
    }
    earlier.iter().find_map(|pool| {
        let other = pool.ranges.iter().find(|other| other.meets(range))?;
        Some(format!("{range} overlaps {other} of pool {:?}", pool.name))
    })
}
