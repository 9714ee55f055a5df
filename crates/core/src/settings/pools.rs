//! What all kinds of pools share: reads their common fields, and checks the pools of a kind against each other.

use super::reader::{Fields, Reader};
use super::{Mistake, Pool};
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

impl PoolPaths {
    /// The paths that the values of a default pool would have in a document.
    pub(super) fn of_default(index: usize, pool: &Pool) -> Self {
        let path = format!("services.pools[{index}]");
        let items = |key: &str, count| (0..count).map(|item| format!("{path}.{key}[{item}]")).collect();
        Self {
            cidrs: items("cidrs", pool.cidrs.len()),
            exclude: items("exclude", pool.exclude.len()),
            match_is_whole: true,
            path,
            ..Self::default()
        }
    }
}

/// Reads the fields that all kinds of pools share.
impl Reader {
    /// Reads the pools of a section that is useless without any.
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

    pub(super) fn pool_name(&mut self, at: &Located<'_>, fields: &Fields<'_>) -> String {
        match fields.get("name") {
            Some(name) => self.dns_label(name).unwrap_or_default(),
            None => {
                self.mistake(at.key_path("name"), "missing: every pool needs a name");
                String::new()
            }
        }
    }

    /// Reads the ranges, and returns them with their paths.
    pub(super) fn pool_ranges<T>(
        &mut self,
        at: &Located<'_>,
        fields: &Fields<'_>,
        range: impl Fn(&mut Self, &Located<'_>) -> Option<T>,
    ) -> (Vec<String>, Vec<T>) {
        let Some(cidrs) = fields.get("cidrs") else {
            self.mistake(at.key_path("cidrs"), "missing: a pool needs at least one range");
            return Default::default();
        };
        if cidrs.value.as_array().is_some_and(Vec::is_empty) {
            self.mistake(cidrs.path.clone(), "no range: a pool needs at least one");
        }
        self.list(cidrs, |reader, at| Some((at.path.clone(), range(reader, at)?))).into_iter().unzip()
    }

    /// Reads `exclude`, and returns the ranges with their paths.
    pub(super) fn pool_exclude<T>(
        &mut self,
        fields: &Fields<'_>,
        range: impl Fn(&mut Self, &Located<'_>) -> Option<T>,
    ) -> (Vec<String>, Vec<T>) {
        let exclude = fields
            .get("exclude")
            .map(|exclude| self.list(exclude, |reader, at| Some((at.path.clone(), range(reader, at)?))));
        exclude.unwrap_or_default().into_iter().unzip()
    }

    /// Reads `nodeLabels`, and `os`, which is a short form for one of them.
    pub(super) fn node_labels(&mut self, fields: &Fields<'_>) -> Labels {
        let mut node_labels = Labels::new();
        if let Some(labels) = fields.get("nodeLabels") {
            for (key, value) in self.labels(labels) {
                let value = normal(&key, &value);
                node_labels.insert(key, value);
            }
        }
        if let Some((at, os)) = fields.get("os").and_then(|at| Some((at, self.os(at)?))) {
            match node_labels.get(OS_LABEL) {
                Some(other) if *other != os => {
                    let reason = format!("contradicts nodeLabels, where {OS_LABEL} is {}", quote(other));
                    self.mistake(at.path.clone(), reason);
                }
                _ => {
                    node_labels.insert(OS_LABEL.into(), os);
                }
            }
        }
        node_labels
    }
}

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
    // Each request checks the settings, and they may have hundreds of pools: pools are compared pair by pair only if
    // there is something to find.
    let (has_unique_names, are_disjoint) = (have_unique_names(pools), are_disjoint(pools));
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

fn have_unique_names(pools: &[Common<'_>]) -> bool {
    let mut names = Labels::new();
    pools.iter().all(|pool| names.insert(pool.name.to_owned(), String::new()).is_none())
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
