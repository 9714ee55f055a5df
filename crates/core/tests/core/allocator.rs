//! The order in which blocks are handed out: golden sequences of the Kubernetes RangeAllocator, and random sequences
//! against an oracle.

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
    fn new(blocks: Blocks) -> Self {
        Self { blocks, used: Occupancy::default(), next: 0 }
    }

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

    fn held(&self) -> u128 {
        self.used.len()
    }
}

#[track_caller]
fn allocator(cidr: &str, block_len: u8) -> Allocator {
    Allocator::new(Blocks::new(net(cidr), block_len).unwrap())
}

/// Allocates until no block is free.
#[track_caller]
fn drain(allocator: &mut Allocator) -> Vec<IpNet> {
    let mut blocks = Vec::new();
    while let Some(block) = allocator.allocate_next() {
        blocks.push(block);
        assert!(blocks.len() <= 1 << 16, "allocates for ever");
    }
    blocks
}

/// The blocks `10.x.y.0/24` for each third octet `y`.
fn slash_24_blocks(prefix: &str, third_octets: impl Iterator<Item = u16>) -> Vec<IpNet> {
    third_octets.map(|third| net(&format!("{prefix}.{third}.0/24"))).collect()
}

#[test]
fn cidr_of_one_block_is_full_until_released() {
    let mut allocator = allocator("127.123.234.0/30", 30);
    let whole = net("127.123.234.0/30");
    assert_eq!(allocator.allocate_next(), Some(whole));
    assert_eq!(allocator.allocate_next(), None);
    allocator.release(whole);
    assert_eq!(allocator.allocate_next(), Some(whole));
    assert_eq!(allocator.allocate_next(), None);
}

#[test]
fn all_256_blocks_of_a_slash_16_come_in_order_again_after_release() {
    let mut allocator = allocator("127.123.234.0/16", 24);
    let all = slash_24_blocks("127.123", 0..=255);
    assert_eq!(drain(&mut allocator), all);
    for block in &all {
        allocator.release(*block);
    }
    assert_eq!(allocator.held(), 0);
    assert_eq!(drain(&mut allocator), all);
}

#[test]
fn with_the_last_128_blocks_occupied_the_first_128_are_allocated() {
    let mut allocator = allocator("127.123.234.0/16", 24);
    for block in slash_24_blocks("127.123", 128..=255) {
        allocator.occupy(block);
    }
    allocator.occupy(net("127.123.200.0/24"));
    assert_eq!(allocator.held(), 128);
    assert_eq!(drain(&mut allocator), slash_24_blocks("127.123", 0..=127));
    assert_eq!(allocator.held(), 256);
}

#[test]
fn occupy_and_release_are_counted_and_idempotent() {
    type Step = fn(&mut Allocator, IpNet);
    struct Case {
        name: &'static str,
        step: Step,
        range: &'static str,
        held: u128,
    }
    let (occupy, release): (Step, Step) = (Allocator::occupy, Allocator::release);
    let rows = [
        Case { name: "occupy a block", step: occupy, range: "10.42.5.0/24", held: 1 },
        Case { name: "occupy another block", step: occupy, range: "10.42.9.0/24", held: 2 },
        Case { name: "occupy a range that contains it", step: occupy, range: "10.42.8.0/22", held: 5 },
        Case { name: "occupy it again", step: occupy, range: "10.42.9.0/24", held: 5 },
        Case { name: "release it", step: release, range: "10.42.9.0/24", held: 4 },
        Case { name: "release it again", step: release, range: "10.42.9.0/24", held: 4 },
        Case { name: "release a range with one held", step: release, range: "10.42.4.0/22", held: 3 },
    ];
    let mut allocator = allocator("10.42.0.0/16", 24);
    for Case { name, step, range, held } in rows {
        step(&mut allocator, net(range));
        assert_eq!(allocator.held(), held, "{name}");
    }
    let free = slash_24_blocks("10.42", (0..=255).filter(|third| ![8, 10, 11].contains(third)));
    assert_eq!(free.len(), 253);
    assert_eq!((drain(&mut allocator), allocator.held()), (free, 256));
}

#[test]
fn occupied_half_is_skipped() {
    let mut allocator = allocator("10.0.0.0/16", 24);
    allocator.occupy(net("10.0.0.0/17"));
    assert_eq!(allocator.allocate_next(), Some(net("10.0.128.0/24")));
}

#[test]
fn occupying_a_range_holds_every_overlapping_block() {
    struct Case {
        name: &'static str,
        cidr: &'static str,
        block_len: u8,
        range: &'static str,
        held: u128,
    }
    let rows = [
        Case { name: "the whole /8 in /16", cidr: "127.0.0.0/8", block_len: 16, range: "127.0.0.0/8", held: 256 },
        Case { name: "one /16 of the /8", cidr: "127.0.0.0/8", block_len: 16, range: "127.0.0.0/16", held: 1 },
        Case { name: "a part of a /16", cidr: "127.0.0.0/8", block_len: 16, range: "127.5.7.0/24", held: 1 },
        Case {
            name: "a /16 in single addresses",
            cidr: "127.0.0.0/8",
            block_len: 32,
            range: "127.0.0.0/16",
            held: 65_536,
        },
        Case {
            name: "a range larger than the CIDR",
            cidr: "127.0.0.0/8",
            block_len: 16,
            range: "0.0.0.0/0",
            held: 256,
        },
        Case {
            name: "a whole IPv6 /40 in /48",
            cidr: "2001:beef:1200::/40",
            block_len: 48,
            range: "2001:beef:1200::/40",
            held: 256,
        },
        Case {
            name: "all IPv6 addresses: the count saturates",
            cidr: "::/0",
            block_len: 128,
            range: "::/0",
            held: u128::MAX,
        },
    ];
    for Case { name, cidr, block_len, range, held } in rows {
        let mut allocator = allocator(cidr, block_len);
        allocator.occupy(net(range));
        assert_eq!(allocator.held(), held, "{name}: occupied");
        allocator.release(net(range));
        assert_eq!(allocator.held(), 0, "{name}: released");
    }
}

#[test]
fn range_outside_the_cidr_has_no_effect() {
    for (name, range) in [("outside", "10.43.0.0/24"), ("of the other family", "fd00::/64")] {
        let mut allocator = allocator("10.42.0.0/16", 24);
        allocator.occupy(net(range));
        assert_eq!(allocator.held(), 0, "{name}");
        assert_eq!(allocator.blocks.index_behind(net(range)), None, "{name}");
    }
}

#[test]
fn search_continues_behind_the_last_block_and_wraps_around() {
    let mut allocator = allocator("10.0.0.0/22", 24);
    let mut next = |step: &str| {
        if let Some(range) = step.strip_prefix("release ") {
            allocator.release(net(range));
        } else if let Some(range) = step.strip_prefix("occupy ") {
            allocator.occupy(net(range));
        }
        allocator.allocate_next().map_or("none".to_owned(), |block| block.to_string())
    };
    let rows = [
        ("", "10.0.0.0/24"),
        ("", "10.0.1.0/24"),
        ("release 10.0.0.0/24", "10.0.2.0/24"),
        ("occupy 10.0.3.0/24", "10.0.0.0/24"),
        ("", "none"),
        ("release 10.0.0.0/23", "10.0.1.0/24"),
        ("", "10.0.0.0/24"),
        ("release 10.0.3.0/24", "10.0.3.0/24"),
        ("release 10.0.0.0/22", "10.0.0.0/24"),
    ];
    for (index, (step, expected)) in rows.into_iter().enumerate() {
        assert_eq!(next(step), expected, "step {index}: {step}");
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

fn steps(blocks: usize) -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..blocks, -1_i8..=2);
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
    let mut allocator = Allocator::new(blocks);
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
        prop_assert_eq!(allocator.held(), held as u128, "step {}", index);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn any_sequence_over_ipv4_blocks_matches_the_oracle(steps in steps(BLOCKS)) {
        behaves_like_the_oracle("10.200.0.0/20", 24, &steps)?;
    }

    #[test]
    fn any_sequence_over_ipv6_blocks_matches_the_oracle(steps in steps(BLOCKS)) {
        behaves_like_the_oracle("ffff:ffff:ffff:fff0::/60", 64, &steps)?;
    }

    #[test]
    fn any_sequence_at_the_end_of_the_address_space_matches_the_oracle(steps in steps(BLOCKS)) {
        behaves_like_the_oracle("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffe0/123", 127, &steps)?;
    }
}
