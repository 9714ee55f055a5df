//! The order in which blocks are handed out, as by the Kubernetes RangeAllocator: random sequences against an oracle.

use clusterip_core::address::{Blocks, Occupancy};
use ipnet::IpNet;
use proptest::prelude::*;

use crate::support::{cases, net};

/// The blocks of a CIDR, those in use, and where the search for the next one begins.
struct Allocator {
    blocks: Blocks,
    used: Occupancy,
    next: u128,
}

impl Allocator {
    fn allocate_next(&mut self) -> Option<IpNet> {
        let block = self.blocks.block(self.blocks.next_free(&self.used, self.next)?)?;
        self.occupy(block);
        self.next = self.blocks.index_behind(block)?;
        Some(block)
    }

    fn occupy(&mut self, range: IpNet) {
        self.used.extend(self.blocks.indices(range));
    }

    fn release(&mut self, range: IpNet) {
        self.blocks.indices(range).into_iter().for_each(|indices| self.used.remove(indices));
    }
}

/// The same allocator in its simplest form: a flag for each block.
struct Oracle {
    held: Vec<bool>,
    next: usize,
}

impl Oracle {
    fn allocate_next(&mut self) -> Option<usize> {
        let count = self.held.len();
        let index = (0..count).map(|step| (self.next + step) % count).find(|&index| !self.held[index])?;
        self.held[index] = true;
        self.next = (index + 1) % count;
        Some(index)
    }

    fn set(&mut self, first: usize, len: usize, held: bool) {
        self.held.iter_mut().skip(first).take(len).for_each(|block| *block = held);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate,
    /// A range of 2^size blocks around this block; a size of -1 is half a block.
    Occupy(usize, i8),
    Release(usize, i8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..BLOCKS, -1_i8..=2);
    let step = prop_oneof![
        3 => Just(Step::Allocate),
        1 => range().prop_map(|(block, size)| Step::Occupy(block, size)),
        1 => range().prop_map(|(block, size)| Step::Release(block, size)),
    ];
    prop::collection::vec(step, 1..80)
}

const BLOCKS: usize = 16;

fn behaves_like_the_oracle(cidr: &str, block_len: u8, steps: &[Step]) -> Result<(), TestCaseError> {
    let blocks = Blocks::new(net(cidr), block_len).unwrap();
    prop_assert_eq!(blocks.last_index(), BLOCKS as u128 - 1);
    let mut allocator = Allocator { blocks, used: Occupancy::default(), next: 0 };
    let mut oracle = Oracle { held: vec![false; BLOCKS], next: 0 };
    // The range around a block, and the indices of the blocks in it.
    let range = |block: usize, size: i8| {
        let around = IpNet::new(blocks.address(block as u128).unwrap(), block_len.saturating_add_signed(-size));
        let len = 1_usize << size.max(0);
        (around.unwrap(), block / len * len, len)
    };
    for (index, step) in steps.iter().enumerate() {
        match *step {
            Step::Allocate => {
                let expected = oracle.allocate_next().map(|block| blocks.block(block as u128).unwrap());
                prop_assert_eq!(allocator.allocate_next(), expected, "step {}", index);
            }
            Step::Occupy(block, size) => {
                let (range, first, len) = range(block, size);
                oracle.set(first, len, true);
                allocator.occupy(range);
            }
            Step::Release(block, size) => {
                let (range, first, len) = range(block, size);
                oracle.set(first, len, false);
                allocator.release(range);
            }
        }
        let held = oracle.held.iter().filter(|held| **held).count();
        prop_assert_eq!(allocator.used.len(), held as u128, "step {}", index);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn any_sequence_matches_the_oracle_also_at_the_end_of_the_address_space(steps in steps()) {
        behaves_like_the_oracle("10.200.0.0/20", 24, &steps)?;
        behaves_like_the_oracle("ffff:ffff:ffff:fff0::/60", 64, &steps)?;
        behaves_like_the_oracle("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffe0/123", 127, &steps)?;
    }
}
