//! The blocks of Nodes: which Node has which block, and whether it lies in the pool of the Node.

use std::collections::BTreeMap;

use clusterip_cluster::panics;
use clusterip_core::address::{AddressSet, Family, Span, overlap};
use clusterip_core::decision::Report;
use clusterip_core::lookups::EmptyCluster;
use clusterip_core::nodes::{Allocation, BlockPlace, Node, place_of};
use clusterip_core::request::{Change, Request};
use clusterip_core::settings::{NodePool, NodeSettings, Settings};
use clusterip_core::{Decision, InUse, decide};
use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};
use serde_json::{Map, Value};

use super::node_metrics::Misplaced;

/// The blocks of Nodes, in memory that grows with their number and not with the size of the pools.
#[derive(Clone, Debug, Default)]
pub struct HeldBlocks {
    nodes: BTreeMap<String, Vec<IpNet>>,
    occupied: AddressSet,
    last: BTreeMap<IpNet, IpNet>,
}

impl HeldBlocks {
    /// Replaces the blocks of a Node with blocks that this process did not assign.
    pub fn learn(&mut self, node: &str, blocks: Vec<IpNet>) {
        self.forget(node);
        blocks.iter().for_each(|block| self.occupied.insert(*block));
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
            self.occupied.remove(block);
            for (_, kept) in self.sharing(node, block) {
                self.occupied.insert(kept);
            }
        }
    }

    pub fn of(&self, node: &str) -> &[IpNet] {
        self.nodes.get(node).map_or(&[], Vec::as_slice)
    }

    pub fn is_free(&self, block: IpNet) -> bool {
        let span = Span::from(block);
        self.occupied.gaps(&span).next() == Some(span.numbers())
    }

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
        let subnets = |span: Span| {
            let (first, last) = span.numbers().into_inner();
            match span.family() {
                Family::V4 => IpSubnets::V4(Ipv4Subnets::new((first as u32).into(), (last as u32).into(), 0)),
                Family::V6 => IpSubnets::V6(Ipv6Subnets::new(first.into(), last.into(), 0)),
            }
        };
        let held = self.occupied.spans().flat_map(subnets).collect();
        Allocation { held, last: self.last.values().copied().collect() }
    }
}

/// The fields of a `spec` with these blocks. The API server refuses one field without the other.
pub fn fields_of(blocks: &[IpNet]) -> Map<String, Value> {
    let texts = || blocks.iter().map(ToString::to_string);
    Map::from_iter([("podCIDR".to_owned(), texts().next().into()), ("podCIDRs".to_owned(), texts().collect())])
}

#[derive(Clone, Debug)]
pub struct NodePlacement<'s> {
    pub name: String,
    pub pool: Option<&'s NodePool>,
    pub evidence: Option<String>,
    pub reason: Option<String>,
    pub blocks: Vec<PlacedBlock<'s>>,
}

/// A block of a Node, which is never changed: the API server refuses that.
#[derive(Clone, Debug)]
pub struct PlacedBlock<'s> {
    pub block: IpNet,
    pub place: BlockPlace<'s>,
    pub shared_with: Vec<(String, IpNet)>,
}

impl PlacedBlock<'_> {
    /// What is wrong with the block; `None` if it lies in the pool of its Node, and no other Node has it.
    pub fn problem(&self) -> Option<Misplaced> {
        match self.place {
            _ if !self.shared_with.is_empty() => Some(Misplaced::Shared),
            BlockPlace::Right => None,
            BlockPlace::OtherPool { .. } => Some(Misplaced::WrongPool),
            BlockPlace::Withheld { .. } => Some(Misplaced::Withheld),
            BlockPlace::PartlyInPool | BlockPlace::NoPool => Some(Misplaced::Outside),
        }
    }
}

impl<'s> NodePlacement<'s> {
    /// Decides about a Node as if it had no blocks, and compares its `blocks` with its pool and with those of others.
    pub fn of(settings: &'s Settings, node: &Node, blocks: &[IpNet], held: &HeldBlocks) -> Self {
        let decision = decide_blocks(node, settings, &Allocation::default());
        let pool = settings.nodes.pools.iter().find(|pool| Some(&pool.name) == decision.pool.as_ref());
        let placed = |block: &IpNet| PlacedBlock {
            block: *block,
            place: place_of(*block, pool, settings),
            shared_with: held.sharing(&node.name, *block),
        };
        Self {
            name: node.name.clone(),
            pool,
            evidence: decision.evidence.as_ref().map(Report::describe),
            reason: decision.verdict.reason().map(str::to_owned),
            blocks: blocks.iter().map(placed).collect(),
        }
    }
}

/// The decision about a Node without blocks. If the core panics, the Node gets no blocks.
pub fn decide_blocks(node: &Node, settings: &Settings, allocation: &Allocation) -> Decision {
    let in_use = InUse { blocks: Some(allocation), external: None };
    let decision = panics::catch(|| {
        decide(&Request::of_node(Change { object: node.clone(), old: None }), settings, in_use, &EmptyCluster)
    });
    decision.unwrap_or_else(|cause| Decision::denied(500, format!("the decision failed: {cause}")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

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
        for _ in 0..2 {
            held.forget("b");
            let expected = ["10.0.0.0/24", "10.0.2.0/23", "fd00::/64", "fd00:0:0:2::/63"];
            assert_eq!(held.allocation().held, nets(&expected));
        }
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

    /// The core has tests of all places of a block.
    #[test]
    fn misplaced_blocks_are_found() {
        use Misplaced::{Outside, Shared, Withheld, WrongPool};
        struct Case {
            name: &'static str,
            os: &'static str,
            block: &'static str,
            expected: Option<Misplaced>,
        }
        let linux = |name, block, expected| Case { name, os: "linux", block, expected };
        // No pool matches this Node.
        let darwin = |name, block, expected| Case { name, os: "darwin", block, expected };
        let cases = [
            linux("in its pool", "10.0.1.0/24", None),
            linux("in another pool", "10.1.1.0/24", Some(WrongPool)),
            linux("in no pool", "10.2.1.0/24", Some(Outside)),
            linux("contains its own pool", "fd00::/47", Some(Outside)),
            linux("in a Service range", "10.0.9.0/24", Some(Withheld)),
            linux("another Node has a part of the block", "10.0.200.0/23", Some(Shared)),
            darwin("no pool matches the Node, the block is in no pool", "10.2.1.0/24", None),
            darwin("no pool matches the Node, the block is in a pool", "10.1.1.0/24", Some(WrongPool)),
        ];
        let document = json!({
            "services": {"serviceCIDRs": ["10.0.8.0/22"]},
            "nodes": {"pools": [
                {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
                {"name": "linux", "cidrs": ["10.0.0.0/16", "fd00::/48"], "match": {"os": "linux"}},
            ]},
        });
        let settings = Settings::from_value(&document).unwrap();
        let mut held = HeldBlocks::default();
        held.learn("other", nets(&["10.0.201.0/24"]));
        for Case { name, os, block, expected } in cases {
            let net = nets(&[block])[0];
            let labels = [("kubernetes.io/os".to_owned(), os.to_owned())].into();
            let node = Node { name: "own".to_owned(), labels, blocks: Vec::new() };
            let mut held = held.clone();
            held.learn("own", vec![net]);
            let found = NodePlacement::of(&settings, &node, &[net], &held);
            assert_eq!(found.blocks.iter().map(PlacedBlock::problem).collect::<Vec<_>>(), [expected], "{name}");
            assert_eq!(found.pool.map(|pool| pool.name.as_str()), (os != "darwin").then_some(os), "{name}");
            let evidence = (os != "darwin").then(|| format!("kubernetes.io/os={os} (Node own)"));
            assert_eq!(found.evidence, evidence, "{name}");
        }
    }
}
