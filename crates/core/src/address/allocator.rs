use ipnet::IpNet;
use thiserror::Error;

use super::block::{BlockError, Blocks};
use super::occupancy::Occupancy;

/// No block is free.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no block is free in {cidr}: all {held} are held")]
pub struct Full {
    /// The CIDR that is full.
    pub cidr: IpNet,
    /// How many blocks it has, all of them held.
    pub held: u128,
}

/// Hands out the blocks of one CIDR in turn, as the RangeAllocator of Kubernetes' controller manager
/// does: behind the last one handed out, then from the start again.
#[derive(Clone, Debug)]
pub struct BlockAllocator {
    blocks: Blocks,
    held: Occupancy,
    next: u128,
}

impl BlockAllocator {
    /// An allocator that holds nothing.
    pub fn new(blocks: Blocks) -> Self {
        Self { blocks, held: Occupancy::default(), next: 0 }
    }

    /// Takes the first free block at or behind the one that follows the last block handed out, with
    /// wrap-around.
    ///
    /// # Errors
    /// [`Full`] where every block is held.
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

    /// Holds every block that `range` has an address in common with: a block, a part of one, or a
    /// larger range. Blocks already held stay held. Where the next block is sought does not change.
    ///
    /// # Errors
    /// [`BlockError::NotInRange`] where the range lies outside the CIDR.
    pub fn occupy(&mut self, range: IpNet) -> Result<(), BlockError> {
        let indices = self.indices(range)?;
        self.held.insert(indices);
        Ok(())
    }

    /// Frees every block that `range` has an address in common with. Blocks not held are no error.
    /// Where the next block is sought does not change.
    ///
    /// # Errors
    /// [`BlockError::NotInRange`] where the range lies outside the CIDR.
    pub fn release(&mut self, range: IpNet) -> Result<(), BlockError> {
        let indices = self.indices(range)?;
        self.held.remove(indices);
        Ok(())
    }

    /// Goes on behind `last`, the block handed out last, as if this allocator had handed it out. One that
    /// lies outside of the CIDR changes nothing.
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

    /// How many blocks are held.
    pub fn held(&self) -> u128 {
        self.held.len()
    }

    fn indices(&self, range: IpNet) -> Result<std::ops::RangeInclusive<u128>, BlockError> {
        self.blocks.indices(range).ok_or(BlockError::NotInRange { range, cidr: self.blocks.cidr() })
    }
}
