//! What all kinds of pools share: reads their common fields, and checks the pools of a kind against each other.

use super::Mistake;
use super::reader::{Fields, Read, Reader};
use crate::address::{Occupancy, Span};
use crate::json::{Located, quote};
use crate::label_selector::Labels;
use crate::workload::{OS_LABEL, normal};

/// The paths of the values of a pool. Items that could not be read are left out here as in the pool.
#[derive(Debug, Default)]
pub(super) struct PoolPaths {
    pub(super) path: String,
    pub(super) cidrs: Vec<String>,
    pub(super) exclude: Vec<String>,
    pub(super) reservations: Vec<String>,
    /// Whether all conditions of the pool could be read.
    pub(super) match_is_whole: bool,
}

pub(super) struct PoolFields<'v> {
    pub(super) fields: Fields<'v>,
    pub(super) paths: PoolPaths,
}

impl Reader {
    pub(super) fn required_pools<T>(
        &mut self,
        at: &Located<'_>,
        fields: &Fields<'_>,
        section: &str,
        read: impl FnMut(&mut Self, &Located<'_>) -> Option<T>,
    ) -> Vec<T> {
        let Some(pools) = fields.get("pools") else {
            self.mistake(at.key_path("pools"), format!("missing: give at least one pool, or leave `{section}` out"));
            return Vec::new();
        };
        let read = self.list(pools, read);
        if pools.value.as_array().is_some_and(Vec::is_empty) {
            self.mistake(pools.path.clone(), format!("no pool: give at least one, or leave `{section}` out"));
        }
        read
    }

    pub(super) fn pool_fields<'v>(&mut self, at: &Located<'v>, known: &[&'static str]) -> Option<PoolFields<'v>> {
        let before = self.mistakes.len();
        let fields = self.fields(at, known)?;
        let match_is_whole = self.mistakes.len() == before;
        Some(PoolFields { fields, paths: PoolPaths { path: at.path.clone(), match_is_whole, ..PoolPaths::default() } })
    }

    pub(super) fn pool_name(&mut self, PoolFields { fields, paths }: &PoolFields<'_>) -> String {
        if fields.get("name").is_none() {
            self.mistake(format!("{}.name", paths.path), "missing: every pool needs a name");
        }
        self.field(fields, "name", Self::dns_label)
    }

    pub(super) fn pool_ranges<T>(&mut self, pool: &mut PoolFields<'_>, range: Read<T>) -> Vec<T> {
        let ranges;
        match pool.fields.get("cidrs") {
            None => self.mistake(format!("{}.cidrs", pool.paths.path), "missing: a pool needs at least one range"),
            Some(at) if at.value.as_array().is_some_and(Vec::is_empty) => {
                self.mistake(at.path.clone(), "no range: a pool needs at least one");
            }
            Some(_) => {}
        }
        (pool.paths.cidrs, ranges) = self.located(&pool.fields, "cidrs", range);
        ranges
    }

    pub(super) fn pool_exclude<T>(&mut self, pool: &mut PoolFields<'_>, range: Read<T>) -> Vec<T> {
        let exclude;
        (pool.paths.exclude, exclude) = self.located(&pool.fields, "exclude", range);
        exclude
    }

    pub(super) fn pool_match<T: Default>(&mut self, pool: &mut PoolFields<'_>, read: Read<T>) -> T {
        let before = self.mistakes.len();
        let matches = self.field(&pool.fields, "match", read);
        pool.paths.match_is_whole &= self.mistakes.len() == before;
        matches
    }

    /// Reads `nodeLabels`, and `os`, which is a short form for one of them.
    pub(super) fn node_labels(&mut self, fields: &Fields<'_>) -> Labels {
        let mut node_labels = self.field(fields, "nodeLabels", |reader, at| Some(reader.labels(at)));
        node_labels.iter_mut().for_each(|(key, value)| *value = normal(key, value));
        if let Some((at, os)) = fields.get("os").and_then(|at| Some((at, self.os(at)?))) {
            let other = node_labels.insert(OS_LABEL.into(), os);
            if let Some(other) = other.filter(|other| *other != node_labels[OS_LABEL]) {
                let reason = format!("contradicts nodeLabels, where {OS_LABEL} is {}", quote(&other));
                self.mistake(at.path.clone(), reason);
            }
        }
        node_labels
    }
}

/// The fields of a pool that concern the other pools of its kind.
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

/// The mistakes in pools that contradict each other or the other settings. `paths` has one entry for each pool.
///
/// `of_range` finds the further mistakes of a range of a pool, and `covers` whether a pool certainly matches everything
/// that another one matches. Pools and ranges are given by index.
pub(super) fn mistakes(
    pools: &[Common<'_>],
    paths: &[PoolPaths],
    of_range: &dyn Fn(usize, usize) -> [Option<String>; 2],
    covers: &dyn Fn(usize, usize) -> bool,
) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    // Each request checks the settings, and they may have hundreds of pools: pools are compared pair by pair only if
    // there is something to find.
    let mut names = Labels::new();
    let has_unique_names = pools.iter().all(|pool| names.insert(pool.name.to_owned(), String::new()).is_none());
    let are_disjoint = are_disjoint(pools);
    for (index, (pool, pool_paths)) in pools.iter().zip(paths).enumerate() {
        let earlier = &pools[..index];
        let mut say = |path: &str, reason: String| mistakes.push(Mistake { path: path.to_owned(), reason });

        let is_same = |other: &Common<'_>| !pool.name.is_empty() && other.name == pool.name;
        if !has_unique_names && let Some(other) = earlier.iter().position(is_same) {
            let reason = format!("{:?} is already the name of {}", pool.name, paths[other].path);
            say(&format!("{}.name", pool_paths.path), reason);
        }
        for (position, (range, path)) in pool.ranges.iter().zip(&pool_paths.cidrs).enumerate() {
            if !are_disjoint && let Some(reason) = overlapped(range, &pool.ranges[..position], earlier) {
                say(path, reason);
            }
            of_range(index, position).into_iter().flatten().for_each(|reason| say(path, reason));
        }
        for (excluded, path) in pool.exclude.iter().zip(&pool_paths.exclude) {
            if !pool.ranges.iter().any(|range| range.meets(excluded)) {
                say(path, format!("{excluded} is in no range of the pool"));
            }
        }
        let shadows = |other: &usize| paths[*other].match_is_whole && covers(*other, index);
        if let Some(shadow) = (0..index).find(shadows).filter(|_| pool_paths.match_is_whole) {
            let reason =
                format!("never used: pool {:?}, which is tried first, matches the same or more", pools[shadow].name);
            say(&format!("{}.match", pool_paths.path), reason);
        }
    }
    mistakes
}

/// Whether certainly no range has an address of another one. Ranges of both families are compared as numbers, so an
/// IPv6 range of low addresses may seem to overlap one of IPv4.
fn are_disjoint(pools: &[Common<'_>]) -> bool {
    let (mut all, mut count) = (Occupancy::default(), Some(0_u128));
    for pool in pools {
        for range in &pool.ranges {
            all.insert(range.numbers());
            count = count.and_then(|count| count.checked_add(range.count()));
        }
    }
    count == Some(all.len())
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
