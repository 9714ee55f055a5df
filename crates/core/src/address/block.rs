use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;

use super::family::{Family, number};
use super::occupancy::Occupancy;

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
        low_bits(self.block_len - self.cidr.prefix_len())
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

/// A number whose `bits` lowest bits are set.
fn low_bits(bits: u8) -> u128 {
    if bits == 0 { 0 } else { u128::MAX >> (128 - u32::from(bits)) }
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
