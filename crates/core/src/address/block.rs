use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use thiserror::Error;

use super::family::{Family, number};

/// A block or range that does not fit the CIDR it is asked of.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The block would be larger than the CIDR, or longer than an address.
    #[error("blocks of /{block_len} can't be cut out of {cidr}: give a length from /{} to /{bits}", cidr.prefix_len())]
    Length {
        /// The CIDR to be cut.
        cidr: IpNet,
        /// The length that was asked for.
        block_len: u8,
        /// The longest length of the family.
        bits: u8,
    },
    /// The range has no address in common with the CIDR.
    #[error("{range} is not in {cidr}")]
    NotInRange {
        /// The range that was asked for.
        range: IpNet,
        /// The CIDR it should overlap.
        cidr: IpNet,
    },
}

/// A CIDR cut into blocks of one length, each with an index that counts from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    family: Family,
    cidr: IpNet,
    block_len: u8,
}

impl Blocks {
    /// Cuts `cidr` (its host bits are ignored) into blocks of `/block_len`.
    ///
    /// # Errors
    /// [`BlockError::Length`] where a block would be larger than the CIDR or smaller than an address.
    pub fn new(cidr: IpNet, block_len: u8) -> Result<Self, BlockError> {
        let cidr = cidr.trunc();
        let family = Family::of(cidr.addr());
        if block_len < cidr.prefix_len() || block_len > family.bits() {
            return Err(BlockError::Length { cidr, block_len, bits: family.bits() });
        }
        Ok(Self { family, cidr, block_len })
    }

    /// The single addresses of `cidr`: blocks of `/32` or `/128`.
    pub fn addresses(cidr: IpNet) -> Self {
        let cidr = cidr.trunc();
        let family = Family::of(cidr.addr());
        Self { family, cidr, block_len: family.bits() }
    }

    /// The CIDR that is cut, without host bits.
    pub fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// The index of the last block. (The number of blocks itself does not fit a `u128` for the
    /// addresses of `::/0`.)
    pub fn last_index(&self) -> u128 {
        low_bits(self.block_len - self.cidr.prefix_len())
    }

    /// The block with this index, or nothing behind the last one.
    pub fn block(&self, index: u128) -> Option<IpNet> {
        // `block_len` is at most the family's number of bits: `new` checked it.
        IpNet::new(self.address(index)?, self.block_len).ok()
    }

    /// The first address of the block with this index, or nothing behind the last one.
    pub fn address(&self, index: u128) -> Option<IpAddr> {
        if index > self.last_index() {
            return None;
        }
        // A shift by 128 happens for the one block of ::/0 alone, where the index is 0.
        let offset = index.checked_shl(u32::from(self.family.bits() - self.block_len)).unwrap_or(0);
        Some(self.family.address(number(self.cidr.addr()) + offset))
    }

    /// The indices of the blocks that `range` has an address in common with: a block, a part of one,
    /// or a range that covers several of them or the whole CIDR. Nothing where they are disjoint.
    pub fn indices(&self, range: IpNet) -> Option<RangeInclusive<u128>> {
        if Family::of(range.addr()) != self.family {
            return None;
        }
        let first = number(range.network()).max(number(self.cidr.network()));
        let last = number(range.broadcast()).min(number(self.cidr.broadcast()));
        (first <= last).then(|| self.index(first)..=self.index(last))
    }

    /// The index of the block that holds `address`, if one does.
    pub fn index_of(&self, address: IpAddr) -> Option<u128> {
        self.cidr.contains(&address).then(|| self.index(number(address)))
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
