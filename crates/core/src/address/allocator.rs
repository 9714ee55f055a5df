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
    ///
    /// # Errors
    /// [`Full`] if no block is free.
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
    ///
    /// # Errors
    /// [`BlockError::NotInRange`] if the range lies outside of the CIDR.
    pub fn occupy(&mut self, range: IpNet) -> Result<(), BlockError> {
        let indices = self.indices(range)?;
        self.held.insert(indices);
        Ok(())
    }

    /// Frees every block that overlaps `range`. Blocks that are free stay free. The place where the search for the next
    /// block starts does not change.
    ///
    /// # Errors
    /// [`BlockError::NotInRange`] if the range lies outside of the CIDR.
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

    fn indices(&self, range: IpNet) -> Result<std::ops::RangeInclusive<u128>, BlockError> {
        self.blocks.indices(range).ok_or(BlockError::NotInRange { range, cidr: self.blocks.cidr() })
    }
}
