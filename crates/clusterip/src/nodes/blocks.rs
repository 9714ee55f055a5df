//! The blocks of Nodes: which Node has which block, and whether it lies in the pool of the Node.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use clusterip_core::address::{Family, Occupancy, Span, overlap};
use clusterip_core::decision::Report;
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::EmptyCluster;
use clusterip_core::nodes::{Allocation, BlockPlace, Node, place_of};
use clusterip_core::request::Request;
use clusterip_core::settings::{NodeSettings, Settings};
use clusterip_core::{Decision, InUse, decide};
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

/// The pool of a Node, and whether the blocks of the Node lie in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPlacement {
    /// The pool that the Node belongs to; `None` if no pool matches the Node.
    pub pool: Option<String>,
    /// Why the Node belongs there: its labels, as text.
    pub evidence: Option<String>,
    /// The blocks of the Node, and the state of each.
    pub blocks: Vec<(IpNet, BlockStanding)>,
    /// The reason, if the Node would get no blocks.
    pub reason: Option<String>,
}

/// The pool that a Node belongs to, whatever its blocks are. It changes only with the labels of the Node and the
/// settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belonging {
    /// As [`BlockPlacement::pool`].
    pub pool: Option<String>,
    /// As [`BlockPlacement::evidence`].
    pub evidence: Option<String>,
    /// As [`BlockPlacement::reason`].
    pub reason: Option<String>,
}

/// Whether a block is misplaced, and why: the other Nodes that have it, otherwise its [`BlockPlace`]. A misplaced block
/// is reported but never changed, because the API server refuses every change of the blocks of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockStanding {
    /// The block lies in the Node's pool; or no pool matches the Node, and the block lies in no pool.
    InPlace,
    /// Other Nodes have the same block or overlapping blocks.
    Shared(Vec<(String, IpNet)>),
    /// The block lies in this pool, at least partly, which is not the Node's pool.
    WrongPool(String),
    /// The block lies in the Node's pool, but has addresses of this range, which are never handed out.
    Withheld(IpNet),
    /// The block lies in no pool, or only partly in the Node's pool.
    Outside,
}

/// The pool of a Node.
pub fn belonging(settings: &Settings, name: &str, labels: &Labels) -> Belonging {
    let node = Node { name: name.to_owned(), labels: labels.clone(), blocks: Vec::new() };
    let in_use = InUse { blocks: Some(&Allocation::default()), external: None };
    Belonging::of(&decide(&Request::of_new_node(node), settings, in_use, &EmptyCluster))
}

impl Belonging {
    /// Reads the decision about the Node without blocks.
    pub fn of(decision: &Decision) -> Self {
        Self {
            pool: decision.pool.clone(),
            evidence: decision.evidence.as_ref().map(Report::describe),
            reason: decision.verdict.reason().map(str::to_owned),
        }
    }

    /// Compares the blocks of the Node `name` with its pool, and with the blocks of other Nodes.
    pub fn placement(&self, settings: &Settings, name: &str, blocks: &[IpNet], held: &HeldBlocks) -> BlockPlacement {
        let own = settings.nodes.pools.iter().find(|own| Some(&own.name) == self.pool.as_ref());
        let standing = |block: IpNet| {
            let shared = held.sharing(name, block);
            if shared.is_empty() { place_of(block, own, settings).into() } else { BlockStanding::Shared(shared) }
        };
        BlockPlacement {
            pool: self.pool.clone(),
            evidence: self.evidence.clone(),
            blocks: blocks.iter().map(|block| (*block, standing(*block))).collect(),
            reason: self.reason.clone(),
        }
    }
}

impl From<BlockPlace<'_>> for BlockStanding {
    fn from(place: BlockPlace<'_>) -> Self {
        match place {
            BlockPlace::Right => Self::InPlace,
            BlockPlace::OtherPool { pool, .. } => Self::WrongPool(pool.name.clone()),
            BlockPlace::Withheld { range, .. } => Self::Withheld(range),
            BlockPlace::PartlyInPool | BlockPlace::NoPool => Self::Outside,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    mod held_blocks {
        use super::super::*;

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

    mod block_placement {
        use serde_json::json;

        use super::super::*;

        fn settings() -> Value {
            json!({
                "services": {"serviceCIDRs": ["10.0.8.0/22"]},
                "nodes": {"pools": [
                    {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
                    {"name": "linux", "cidrs": ["10.0.0.0/16", "fd00::/48"], "exclude": ["10.0.255.0/24"], "match": {"os": "linux"}},
                ]},
            })
        }

        #[test]
        fn misplaced_blocks_are_found() {
            let wrong = |pool: &str| BlockStanding::WrongPool(pool.to_owned());
            let net = |text: &str| text.parse::<IpNet>().unwrap();
            struct Case {
                name: &'static str,
                os: &'static str,
                block: &'static str,
                expected: BlockStanding,
            }
            let cases = [
                Case { name: "in its pool", os: "linux", block: "10.0.1.0/24", expected: BlockStanding::InPlace },
                Case {
                    name: "in its pool, with another size",
                    os: "linux",
                    block: "10.0.2.0/23",
                    expected: BlockStanding::InPlace,
                },
                Case { name: "IPv6", os: "linux", block: "fd00:0:0:5::/64", expected: BlockStanding::InPlace },
                Case { name: "in another pool", os: "linux", block: "10.1.1.0/24", expected: wrong("windows") },
                Case { name: "contains another pool", os: "linux", block: "10.0.0.0/15", expected: wrong("windows") },
                Case { name: "in no pool", os: "linux", block: "10.2.1.0/24", expected: BlockStanding::Outside },
                Case {
                    name: "contains its own pool",
                    os: "linux",
                    block: "fd00::/47",
                    expected: BlockStanding::Outside,
                },
                Case {
                    name: "in a Service range",
                    os: "linux",
                    block: "10.0.9.0/24",
                    expected: BlockStanding::Withheld(net("10.0.8.0/22")),
                },
                Case {
                    name: "contains a Service range",
                    os: "linux",
                    block: "10.0.0.0/20",
                    expected: BlockStanding::Withheld(net("10.0.8.0/22")),
                },
                Case {
                    name: "excluded",
                    os: "linux",
                    block: "10.0.255.0/24",
                    expected: BlockStanding::Withheld(net("10.0.255.0/24")),
                },
                Case {
                    name: "no pool matches the Node, the block is in no pool",
                    os: "darwin",
                    block: "10.2.1.0/24",
                    expected: BlockStanding::InPlace,
                },
                Case {
                    name: "no pool matches the Node, the block is in a pool",
                    os: "darwin",
                    block: "10.1.1.0/24",
                    expected: wrong("windows"),
                },
                Case {
                    name: "no pool matches the Node, the block contains a pool",
                    os: "darwin",
                    block: "10.0.0.0/8",
                    expected: wrong("windows"),
                },
                Case {
                    name: "another Node has a part of the block",
                    os: "linux",
                    block: "10.0.200.0/23",
                    expected: BlockStanding::Shared(vec![("other".to_owned(), net("10.0.201.0/24"))]),
                },
            ];
            let settings = Settings::from_value(&settings()).unwrap();
            let mut held = HeldBlocks::default();
            held.learn("other", vec![net("10.0.201.0/24")]);
            for Case { name, os, block, expected } in cases {
                let (net, labels) = (net(block), Labels::from([("kubernetes.io/os".to_owned(), os.to_owned())]));
                let mut held = held.clone();
                // Cases with such a large block are not about the block of the other Node.
                if net.prefix_len() < 20 {
                    held.forget("other");
                }
                held.learn("own", vec![net]);
                let found = belonging(&settings, "own", &labels).placement(&settings, "own", &[net], &held);
                assert_eq!(found.blocks, [(net, expected)], "{name}");
                assert_eq!(found.pool.as_deref(), (os != "darwin").then_some(os), "{name}");
                let evidence = (os != "darwin").then(|| format!("kubernetes.io/os={os} (Node own)"));
                assert_eq!(found.evidence, evidence, "{name}");
            }
        }
    }
}
