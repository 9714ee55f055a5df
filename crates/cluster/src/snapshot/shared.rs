//! One copy of what many objects have: the specs of Pods, kinds, and the keys of labels and fields.

use std::cell::RefCell;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;
use std::thread::LocalKey;

use clusterip_core::workload::PodSpec;

use crate::kinds::Kind;

/// How many values a thread remembers. Tenants write them, so neither their number nor their size may grow.
const MOST: usize = 256;
const LONGEST_KEY: usize = 64;
pub(super) const LARGEST_SPEC: usize = 1024;

thread_local! {
    static KEYS: Known<str> = Known::default();
    static KINDS: Known<Kind> = Known::default();
    static SPECS: Known<PodSpec> = Known::default();
}

type Known<T> = RefCell<HashSet<Arc<T>>>;

pub(super) fn key(text: &str) -> Arc<str> {
    if text.len() > LONGEST_KEY { text.into() } else { one(&KEYS, text, || text.into()) }
}

pub(super) fn kind(kind: Kind) -> Arc<Kind> {
    let is_short = kind.0.len().max(kind.1.len()) <= LONGEST_KEY;
    if is_short { one(&KINDS, &kind, || Arc::new(kind.clone())) } else { Arc::new(kind) }
}

/// `spec` may have at most [`LARGEST_SPEC`] bytes.
pub(super) fn spec(spec: PodSpec) -> Arc<PodSpec> {
    one(&SPECS, &spec, || Arc::new(spec.clone()))
}

fn one<T: Eq + Hash + ?Sized>(known: &'static LocalKey<Known<T>>, value: &T, new: impl FnOnce() -> Arc<T>) -> Arc<T> {
    known.with_borrow_mut(|known| {
        if let Some(same) = known.get(value) {
            return Arc::clone(same);
        }
        if known.len() == MOST {
            known.clear();
        }
        let new = new();
        known.insert(Arc::clone(&new));
        new
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_and_few_are_remembered() {
        let first = key("app");
        assert!(Arc::ptr_eq(&first, &key("app")));
        assert_eq!(Arc::strong_count(&key(&"a".repeat(LONGEST_KEY + 1))), 1);
        (0..MOST).for_each(|number| drop(key(&number.to_string())));
        assert_eq!(Arc::strong_count(&first), 1);
        assert!(KEYS.with_borrow(HashSet::len) <= MOST);
    }
}
