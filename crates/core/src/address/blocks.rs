use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::span::{Family, Span, number};

/// A CIDR cut into blocks of one length. Each block has an index from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    family: Family,
    cidr: IpNet,
    block_len: u8,
}

impl Blocks {
    /// Cuts `cidr` into blocks of `/block_len`. Host bits of `cidr` are ignored.
    pub fn new(cidr: IpNet, block_len: u8) -> Result<Self, String> {
        let all = Self::addresses(cidr);
        let (shortest, longest) = (cidr.prefix_len(), all.block_len);
        if (shortest..=longest).contains(&block_len) {
            return Ok(Self { block_len, ..all });
        }
        let cidr = all.cidr;
        Err(format!("blocks of /{block_len} can't be cut out of {cidr}: give a length from /{shortest} to /{longest}"))
    }

    /// The addresses of `cidr` as blocks of `/32` or `/128`.
    pub fn addresses(cidr: IpNet) -> Self {
        let cidr = cidr.trunc();
        let family = Family::of(cidr.addr());
        Self { family, cidr, block_len: family.bits() }
    }

    /// The index of the last block. (The number of blocks would not fit into a `u128` for the addresses of `::/0`.)
    pub fn last_index(&self) -> u128 {
        let bits = u32::from(self.block_len - self.cidr.prefix_len());
        u128::MAX.checked_shr(u128::BITS - bits).unwrap_or(0)
    }

    /// The block with this index; `None` behind the last one.
    pub fn block(&self, index: u128) -> Option<IpNet> {
        // `new` checked that `block_len` is at most the number of bits of the family.
        IpNet::new(self.address(index)?, self.block_len).ok()
    }

    /// The first address of the block with this index; `None` behind the last one.
    pub fn address(&self, index: u128) -> Option<IpAddr> {
        if index > self.last_index() {
            return None;
        }
        // A shift by 128 bits happens only for the one block of ::/0, whose index is 0.
        let offset = index.checked_shl(u32::from(self.family.bits() - self.block_len)).unwrap_or(0);
        Some(self.family.address(number(self.cidr.addr()) + offset))
    }

    /// The indices of the blocks that overlap `range`: a block, a part of one, several, or the whole CIDR. `None` if
    /// the range does not overlap the CIDR.
    pub fn indices(&self, range: IpNet) -> Option<RangeInclusive<u128>> {
        if Family::of(range.addr()) != self.family {
            return None;
        }
        let first = number(range.network()).max(number(self.cidr.network()));
        let last = number(range.broadcast()).min(number(self.cidr.broadcast()));
        (first <= last).then(|| self.index(first)..=self.index(last))
    }

    /// The first index from `from` on that is not in `used`, with wrap-around: blocks are handed out in turn, as the
    /// RangeAllocator of the Kubernetes controller manager does.
    pub fn next_free(&self, used: &Occupancy, from: u128) -> Option<u128> {
        let before = || used.first_gap(0..=from.checked_sub(1)?);
        used.first_gap(from..=self.last_index()).or_else(before)
    }

    /// The index behind the last block that overlaps `range`, which is 0 at the end. `None` as in [`Self::indices`].
    pub fn index_behind(&self, range: IpNet) -> Option<u128> {
        let last = *self.indices(range)?.end();
        Some(if last == self.last_index() { 0 } else { last + 1 })
    }

    fn index(&self, value: u128) -> u128 {
        (value - number(self.cidr.addr())).checked_shr(u32::from(self.family.bits() - self.block_len)).unwrap_or(0)
    }
}

/// Whether two ranges have an address in common.
pub fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// The number of addresses in the static band of a range. The band starts at index 1; KEP-3070
/// (ServiceIPStaticSubrange) keeps it for addresses chosen by hand.
///
/// It is 0 for a range of at most 16 addresses; otherwise a sixteenth of the addresses, at least 16 and at most 256.
/// All addresses of the range count, including the network address.
pub fn static_band_len(cidr: IpNet) -> u128 {
    const MIN_LENGTH: u128 = 16;
    const MAX_LENGTH: u128 = 256;
    let addresses = Blocks::addresses(cidr).last_index().saturating_add(1);
    if addresses <= MIN_LENGTH { 0 } else { (addresses / 16).clamp(MIN_LENGTH, MAX_LENGTH) }
}

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
    pub fn insert(&mut self, addresses: impl Into<Span>) {
        let span = addresses.into();
        self.of(span.family()).insert(span.numbers());
    }

    pub fn remove(&mut self, addresses: impl Into<Span>) {
        let span = addresses.into();
        self.of(span.family()).remove(span.numbers());
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

    fn of(&mut self, family: Family) -> &mut Occupancy {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}
