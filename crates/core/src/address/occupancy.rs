use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use super::family::{Family, number};
use super::span::Span;

/// A set of indices, stored as disjoint ranges that do not touch. Memory grows with the number of ranges, not with the
/// number of indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// The first index of each range → its last index.
    ranges: BTreeMap<u128, u128>,
}

impl Occupancy {
    /// Adds every index of `range`. Indices that are already in the set stay; an empty range adds nothing.
    pub fn insert(&mut self, range: RangeInclusive<u128>) {
        let (mut first, mut last) = range.into_inner();
        if first > last {
            return;
        }
        // Merge all ranges that overlap or touch the new one.
        while let Some((&start, &end)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            if end.saturating_add(1) < first {
                break;
            }
            first = first.min(start);
            last = last.max(end);
            self.ranges.remove(&start);
        }
        self.ranges.insert(first, last);
    }

    pub fn extend(&mut self, ranges: impl IntoIterator<Item = RangeInclusive<u128>>) {
        ranges.into_iter().for_each(|range| self.insert(range));
    }

    /// Removes every index of `range`. Indices that are not in the set are ignored.
    pub fn remove(&mut self, range: RangeInclusive<u128>) {
        let (first, last) = range.into_inner();
        if first > last {
            return;
        }
        while let Some((&start, &end)) = self.ranges.range(..=last).next_back() {
            if end < first {
                break;
            }
            self.ranges.remove(&start);
            if start < first {
                self.ranges.insert(start, first - 1);
            }
            if end > last {
                self.ranges.insert(last + 1, end);
            }
        }
    }

    pub fn contains(&self, index: u128) -> bool {
        self.ranges.range(..=index).next_back().is_some_and(|(_, &end)| end >= index)
    }

    /// The first index of `within` that is not in the set.
    pub fn first_gap(&self, within: RangeInclusive<u128>) -> Option<u128> {
        self.gaps(within).next().map(|gap| *gap.start())
    }

    /// The ranges of `within` that are not in the set, ascending.
    pub fn gaps(&self, within: RangeInclusive<u128>) -> impl Iterator<Item = RangeInclusive<u128>> {
        let (mut next, last) = (Some(*within.start()), *within.end());
        // A range that begins before `within` may reach into it.
        let from = self.ranges.range(..=*within.start()).next_back().map_or(*within.start(), |(&start, _)| start);
        let mut ranges = self.ranges.range(from..);
        std::iter::from_fn(move || {
            loop {
                let start = next.filter(|&start| start <= last)?;
                match ranges.next() {
                    Some((&occupied, &end)) if occupied <= last => {
                        next = end.checked_add(1).map(|behind| behind.max(start));
                        if occupied > start {
                            return Some(start..=occupied - 1);
                        }
                    }
                    _ => {
                        next = None;
                        return Some(start..=last);
                    }
                }
            }
        })
    }

    /// The number of indices in the set; at most `u128::MAX`, even if the set has all 2^128.
    pub fn len(&self) -> u128 {
        self.ranges.iter().fold(0_u128, |sum, (start, end)| sum.saturating_add((end - start).saturating_add(1)))
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges of the set, ascending. They neither overlap nor touch.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u128>> {
        self.ranges.iter().map(|(&start, &end)| start..=end)
    }
}

/// A set of addresses of both families. Memory grows with the number of ranges, not with the number of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressSet {
    v4: Occupancy,
    v6: Occupancy,
}

impl AddressSet {
    pub fn insert(&mut self, address: IpAddr) {
        self.of(address).insert(number(address)..=number(address));
    }

    pub fn remove(&mut self, address: IpAddr) {
        self.of(address).remove(number(address)..=number(address));
    }

    /// The addresses in ascending order, those of IPv4 first, in as few spans as possible.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        [(Family::V4, &self.v4), (Family::V6, &self.v6)].into_iter().flat_map(|(family, numbers)| {
            let span = move |(first, last): (u128, u128)| Span::new(family.address(first), family.address(last));
            numbers.ranges().map(|range| range.into_inner()).filter_map(span)
        })
    }

    /// The parts of `within` that are not in the set, ascending.
    pub fn gaps(&self, within: &Span) -> impl Iterator<Item = RangeInclusive<u128>> {
        let of_family = match within.family() {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        of_family.gaps(within.numbers())
    }

    fn of(&mut self, address: IpAddr) -> &mut Occupancy {
        match Family::of(address) {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}
