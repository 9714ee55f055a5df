//! A set for indexes, most of whose sets have one element.

use std::collections::BTreeSet;

/// An ordered set. With one element, it needs no memory besides that element; a `BTreeSet` has room for eleven.
#[derive(Debug)]
pub(super) enum SmallSet<T> {
    One(T),
    /// Any number of elements.
    Any(BTreeSet<T>),
}

impl<T> Default for SmallSet<T> {
    fn default() -> Self {
        Self::Any(BTreeSet::new())
    }
}

impl<T: Ord> SmallSet<T> {
    /// Adds an element.
    pub(super) fn insert(&mut self, element: T) {
        *self = match std::mem::take(self) {
            Self::One(only) if only == element => Self::One(only),
            Self::One(only) => Self::Any(BTreeSet::from([only, element])),
            Self::Any(elements) if elements.is_empty() => Self::One(element),
            Self::Any(mut elements) => {
                elements.insert(element);
                Self::Any(elements)
            }
        };
    }

    /// Removes an element.
    pub(super) fn remove(&mut self, element: &T) {
        match self {
            Self::One(only) if only == element => *self = Self::default(),
            Self::One(_) => {}
            Self::Any(elements) => {
                elements.remove(element);
            }
        }
    }

    /// The elements in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let (one, any) = match self {
            Self::One(only) => (Some(only), None),
            Self::Any(elements) => (None, Some(elements)),
        };
        one.into_iter().chain(any.into_iter().flatten())
    }

    /// The number of elements.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Any(elements) => elements.len(),
        }
    }

    /// Whether there is no element.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_set_is_a_set() {
        enum Step {
            Insert(u8),
            Remove(u8),
        }
        use Step::{Insert, Remove};
        let steps = [
            (Remove(1), vec![]),
            (Insert(2), vec![2]),
            (Insert(2), vec![2]),
            (Remove(1), vec![2]),
            (Insert(1), vec![1, 2]),
            (Insert(3), vec![1, 2, 3]),
            (Insert(3), vec![1, 2, 3]),
            (Remove(2), vec![1, 3]),
            (Remove(1), vec![3]),
            (Remove(3), vec![]),
            (Insert(4), vec![4]),
            (Remove(4), vec![]),
        ];
        let mut set = SmallSet::default();
        for (number, (step, expected)) in steps.into_iter().enumerate() {
            match step {
                Insert(element) => set.insert(element),
                Remove(element) => set.remove(&element),
            }
            let found: Vec<u8> = set.iter().copied().collect();
            assert_eq!((found.len(), found.is_empty()), (set.len(), set.is_empty()), "step {number}");
            assert_eq!(found, expected, "step {number}");
        }
    }
}
