use std::net::IpAddr;
use std::ops::RangeInclusive;

use ipnet::IpNet;
use thiserror::Error;

use super::family::{Family, number};
use super::occupancy::Occupancy;

/// Why a block or range does not fit a CIDR.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The block would be larger than the CIDR, or smaller than one address.
    #[error("blocks of /{block_len} can't be cut out of {cidr}: give a length from /{} to /{bits}", cidr.prefix_len())]
    Length {
        /// The CIDR to be cut.
        cidr: IpNet,
        /// The prefix length that was requested.
        block_len: u8,
        /// The longest prefix length of the family.
        bits: u8,
    },
    /// The range has no address in common with the CIDR.
    #[error("{range} is not in {cidr}")]
    NotInRange {
        /// The range that was requested.
        range: IpNet,
        /// The CIDR that it should overlap.
        cidr: IpNet,
    },
}

/// A CIDR cut into blocks of one length. Each block has an index from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    family: Family,
    cidr: IpNet,
    block_len: u8,
}

impl Blocks {
    /// Cuts `cidr` into blocks of `/block_len`. Host bits of `cidr` are ignored.
    pub fn new(cidr: IpNet, block_len: u8) -> Result<Self, BlockError> {
        let cidr = cidr.trunc();
        let family = Family::of(cidr.addr());
        if block_len < cidr.prefix_len() || block_len > family.bits() {
            return Err(BlockError::Length { cidr, block_len, bits: family.bits() });
        }
        Ok(Self { family, cidr, block_len })
    }

    /// The addresses of `cidr` as blocks of `/32` or `/128`.
    pub fn addresses(cidr: IpNet) -> Self {
        let cidr = cidr.trunc();
        let family = Family::of(cidr.addr());
        Self { family, cidr, block_len: family.bits() }
    }

    /// The CIDR without host bits.
    pub fn cidr(&self) -> IpNet {
        self.cidr
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

    /// The index of the block that contains `address`; `None` if it is outside of the CIDR.
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

/// No block is free.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no block is free in {cidr}: all {held} are held")]
pub struct Full {
    /// The CIDR that is full.
    pub cidr: IpNet,
    /// How many blocks the CIDR has; all of them are in use.
    pub held: u128,
}

/// Hands out the blocks of one CIDR in turn, like the RangeAllocator of the Kubernetes controller manager: the search
/// starts behind the last block handed out, and wraps around.
#[derive(Clone, Debug)]
pub struct BlockAllocator {
    blocks: Blocks,
    held: Occupancy,
    next: u128,
}

impl BlockAllocator {
    /// An allocator in which all blocks are free.
    pub fn new(blocks: Blocks) -> Self {
        Self { blocks, held: Occupancy::default(), next: 0 }
    }

    /// Allocates the first free block behind the last block handed out, with wrap-around.
    pub fn allocate_next(&mut self) -> Result<IpNet, Full> {
        let last = self.blocks.last_index();
        let found = self
            .held
            .first_gap(self.next..=last)
            .or_else(|| self.next.checked_sub(1).and_then(|before| self.held.first_gap(0..=before)));
        let full = || Full { cidr: self.blocks.cidr(), held: self.held.len() };
        let index = found.ok_or_else(full)?;
        let block = self.blocks.block(index).ok_or_else(full)?;
        self.held.insert(index..=index);
        self.next = if index == last { 0 } else { index + 1 };
        Ok(block)
    }

    /// Marks every block that overlaps `range` as used: a block, a part of one, or several. Used blocks stay used. The
    /// place where the search for the next block starts does not change.
    pub fn occupy(&mut self, range: IpNet) -> Result<(), BlockError> {
        let indices = self.indices(range)?;
        self.held.insert(indices);
        Ok(())
    }

    /// Frees every block that overlaps `range`. Blocks that are free stay free. The place where the search for the next
    /// block starts does not change.
    pub fn release(&mut self, range: IpNet) -> Result<(), BlockError> {
        let indices = self.indices(range)?;
        self.held.remove(indices);
        Ok(())
    }

    /// Continues behind `last`, as if this allocator had handed it out. A block outside of the CIDR changes nothing.
    pub fn continue_behind(&mut self, last: IpNet) {
        if let Ok(indices) = self.indices(last) {
            let index = *indices.end();
            self.next = if index == self.blocks.last_index() { 0 } else { index + 1 };
        }
    }

    /// Whether no block is free.
    pub fn is_full(&self) -> bool {
        self.held.first_gap(0..=self.blocks.last_index()).is_none()
    }

    /// How many blocks are in use.
    pub fn held(&self) -> u128 {
        self.held.len()
    }

    fn indices(&self, range: IpNet) -> Result<RangeInclusive<u128>, BlockError> {
        self.blocks.indices(range).ok_or(BlockError::NotInRange { range, cidr: self.blocks.cidr() })
    }
}
