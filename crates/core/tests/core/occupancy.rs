//! A set of indices stored as ranges, compared with a set of single indices.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use clusterip_core::address::Occupancy;
use proptest::prelude::*;

use crate::support::cases;

/// The size of the window of indices that the tests use.
const WINDOW: u8 = 40;

#[derive(Clone, Debug)]
enum Step {
    Insert(u8, u8),
    Remove(u8, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..WINDOW, 0..WINDOW);
    let step = prop_oneof![
        range().prop_map(|(first, last)| Step::Insert(first, last)),
        range().prop_map(|(first, last)| Step::Remove(first, last)),
    ];
    prop::collection::vec(step, 0..30)
}

/// The runs of consecutive numbers in a set.
fn runs(indices: impl Iterator<Item = u128>) -> Vec<RangeInclusive<u128>> {
    let mut runs: Vec<RangeInclusive<u128>> = Vec::new();
    for index in indices {
        match runs.last_mut() {
            Some(run) if index > 0 && *run.end() == index - 1 => *run = *run.start()..=index,
            _ => runs.push(index..=index),
        }
    }
    runs
}

/// Applies `steps` to both sets, in a window that starts at `base`, and compares all that can be observed.
fn behaves_like_a_plain_set(base: u128, steps: &[Step], within: (u8, u8)) -> Result<(), TestCaseError> {
    let at = |offset: u8| base + u128::from(offset);
    let (mut occupancy, mut oracle) = (Occupancy::default(), BTreeSet::new());
    for step in steps {
        // A range whose end is before its start is empty in both.
        match *step {
            Step::Insert(first, last) => {
                occupancy.insert(at(first)..=at(last));
                oracle.extend((first..=last).map(at));
            }
            Step::Remove(first, last) => {
                occupancy.remove(at(first)..=at(last));
                (first..=last).map(at).for_each(|index| {
                    oracle.remove(&index);
                });
            }
        }
        prop_assert_eq!(occupancy.ranges().collect::<Vec<_>>(), runs(oracle.iter().copied()), "after {:?}", step);
    }
    prop_assert_eq!(occupancy.len(), oracle.len() as u128);
    prop_assert_eq!(occupancy.is_empty(), oracle.is_empty());
    for index in (0..WINDOW).map(at) {
        prop_assert_eq!(occupancy.contains(index), oracle.contains(&index), "index {}", index);
    }
    let free = (within.0..=within.1).map(at).filter(|index| !oracle.contains(index));
    let gaps = runs(free);
    prop_assert_eq!(occupancy.first_gap(at(within.0)..=at(within.1)), gaps.first().map(|gap| *gap.start()));
    prop_assert_eq!(occupancy.gaps(at(within.0)..=at(within.1)).collect::<Vec<_>>(), gaps);
    Ok(())
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn behaves_like_a_plain_set_from_zero_to_the_largest_number(steps in steps(), within in (0..WINDOW, 0..WINDOW)) {
        for base in [0, 1 << 64, u128::MAX - u128::from(WINDOW) + 1] {
            behaves_like_a_plain_set(base, &steps, within)?;
        }
    }
}

#[test]
fn set_can_contain_every_u128() {
    let mut occupancy = Occupancy::default();
    occupancy.insert(0..=u128::MAX);
    assert_eq!(occupancy.len(), u128::MAX, "one less than there are: 2^128 is no u128");
    assert_eq!(occupancy.first_gap(0..=u128::MAX), None);
    assert!(occupancy.contains(u128::MAX));

    occupancy.remove(5..=u128::MAX - 5);
    assert_eq!(occupancy.ranges().collect::<Vec<_>>(), [0..=4, u128::MAX - 4..=u128::MAX]);
    assert_eq!(occupancy.gaps(0..=u128::MAX).collect::<Vec<_>>(), [5..=u128::MAX - 5]);
    assert_eq!(occupancy.len(), 10);
}
