//! The blocks that Nodes have, or that are reserved for them.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use clusterip_core::address::{Family, Occupancy, Span, overlap};
use clusterip_core::nodes::Allocation;
use clusterip_core::settings::NodeSettings;
use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use serde_json::{Map, Value};

/// The blocks of Nodes, and the positions at which the search for free blocks begins. The memory grows with the number
/// of Nodes, not with the size of the pools.
#[derive(Clone, Debug, Default)]
pub struct HeldBlocks {
    nodes: BTreeMap<String, Vec<IpNet>>,
    v4: Occupancy,
    v6: Occupancy,
    /// The last assigned block, by its range.
    last: BTreeMap<IpNet, IpNet>,
}

impl HeldBlocks {
    /// Replaces the blocks of a Node with blocks that this process did not assign. The positions at which the search
    /// begins stay the same.
    pub fn learn(&mut self, node: &str, blocks: Vec<IpNet>) {
        self.forget(node);
        for block in &blocks {
            let numbers = numbers(*block);
            self.occupancy(*block).insert(numbers);
        }
        if !blocks.is_empty() {
            self.nodes.insert(node.to_owned(), blocks);
        }
    }

    /// Assigns blocks to a Node. The search for the next free blocks begins behind them.
    pub fn hand_out(&mut self, node: &str, blocks: Vec<IpNet>, settings: &NodeSettings) {
        for block in &blocks {
            if let Some(range) = settings.pools.iter().find_map(|pool| pool.cidr_of(*block)) {
                self.last.insert(range, *block);
            }
        }
        self.learn(node, blocks);
    }

    /// Releases the blocks of a Node, except for addresses that another Node also has.
    pub fn forget(&mut self, node: &str) {
        let Some(gone) = self.nodes.remove(node) else { return };
        for block in gone {
            let removed = numbers(block);
            self.occupancy(block).remove(removed);
            for other in self.sharing(node, block) {
                let kept = numbers(other.1);
                self.occupancy(other.1).insert(kept);
            }
        }
    }

    /// The blocks of a Node; empty if it has none.
    pub fn of(&self, node: &str) -> &[IpNet] {
        self.nodes.get(node).map_or(&[], Vec::as_slice)
    }

    /// Whether no Node has an address of `block`.
    pub fn is_free(&self, block: IpNet) -> bool {
        let numbers = numbers(block);
        let occupancy = match Family::of(block.addr()) {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        };
        occupancy.gaps(numbers.clone()).next() == Some(numbers)
    }

    /// All Nodes that have blocks, ordered by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &[IpNet])> {
        self.nodes.iter().map(|(name, blocks)| (name.as_str(), blocks.as_slice()))
    }

    /// The blocks of other Nodes that overlap `block`, with the names of the Nodes. Scans all Nodes.
    pub fn sharing(&self, node: &str, block: IpNet) -> Vec<(String, IpNet)> {
        let others = self.nodes.iter().filter(|(name, _)| *name != node);
        others
            .flat_map(|(name, blocks)| {
                blocks.iter().filter(|other| overlap(**other, block)).map(|other| (name.clone(), *other))
            })
            .collect()
    }

    /// The state that the policy gets, with as few ranges as possible.
    pub fn allocation(&self) -> Allocation {
        let v4 = self.v4.ranges().flat_map(|range| {
            let (first, last) = ((*range.start() as u32).into(), (*range.end() as u32).into());
            Ipv4Subnets::new(first, last, 0).map(IpNet::from)
        });
        let v6 = self.v6.ranges().flat_map(|range| {
            let (first, last) = ((*range.start()).into(), (*range.end()).into());
            Ipv6Subnets::new(first, last, 0).map(IpNet::from)
        });
        Allocation { held: v4.chain(v6).collect(), last: self.last.values().copied().collect() }
    }

    fn occupancy(&mut self, block: IpNet) -> &mut Occupancy {
        match Family::of(block.addr()) {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

/// The fields of a Node's `spec` that contain its blocks: `podCIDR` and `podCIDRs`. The API server refuses one
/// without the other.
pub fn fields_of(blocks: &[IpNet]) -> Map<String, Value> {
    let texts = || blocks.iter().map(ToString::to_string);
    Map::from_iter([("podCIDR".to_owned(), texts().next().into()), ("podCIDRs".to_owned(), texts().collect())])
}

/// The addresses of a block, as numbers.
fn numbers(block: IpNet) -> RangeInclusive<u128> {
    Span::from(block).numbers()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn adjacent_blocks_are_merged_and_released_ones_leave_a_gap() {
        let mut held = HeldBlocks::default();
        for (index, node) in ["a", "b", "c", "d"].iter().enumerate() {
            held.learn(node, nets(&[&format!("10.0.{index}.0/24"), &format!("fd00:0:0:{index}::/64")]));
        }
        assert_eq!(held.allocation().held, nets(&["10.0.0.0/22", "fd00::/62"]));
        held.forget("b");
        let expected = ["10.0.0.0/24", "10.0.2.0/23", "fd00::/64", "fd00:0:0:2::/63"];
        assert_eq!(held.allocation().held, nets(&expected));
        held.forget("b");
        assert_eq!(held.allocation().held, nets(&expected), "twice is once");
    }

    #[test]
    fn shared_addresses_stay_held_until_both_nodes_are_gone() {
        let mut held = HeldBlocks::default();
        held.learn("a", nets(&["10.0.0.0/23"]));
        held.learn("b", nets(&["10.0.1.0/24"]));
        assert_eq!(held.sharing("a", nets(&["10.0.0.0/23"])[0]), [("b".to_owned(), nets(&["10.0.1.0/24"])[0])]);
        held.forget("a");
        assert_eq!(held.allocation().held, nets(&["10.0.1.0/24"]));
        held.learn("b", Vec::new());
        assert_eq!(held.allocation(), Allocation::default());
    }
}
