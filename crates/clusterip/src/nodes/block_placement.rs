//! Compares the blocks of a Node with the pool that the Node belongs to.
//!
//! A decision is made as if the Node were created now without blocks. It names the pool of the Node.

use clusterip_cluster::policy::node_request::NodeRequest;
use clusterip_core::decision::Report;
use clusterip_core::lookups::EmptyCluster;
use clusterip_core::nodes::{Allocation, BlockPlace, place_of};
use clusterip_core::settings::Settings;
use clusterip_core::{Decision, InUse, decide_value};
use ipnet::IpNet;
use serde_json::Value;

use super::held_blocks::HeldBlocks;

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
pub fn belonging(settings: &Settings, node: &Value) -> Belonging {
    let mut bare = node.clone();
    if let Some(spec) = bare.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("podCIDR");
        spec.remove("podCIDRs");
    }
    let in_use = InUse { blocks: Some(&Allocation::default()), external: None };
    Belonging::of(&decide_value(&NodeRequest::created(&bare).to_value(), settings, in_use, &EmptyCluster))
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
    use serde_json::json;

    use super::*;

    fn settings() -> Value {
        json!({
            "services": {"serviceCIDRs": ["10.0.8.0/22"]},
            "nodes": {"pools": [
                {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
                {"name": "linux", "cidrs": ["10.0.0.0/16", "fd00::/48"], "exclude": ["10.0.255.0/24"], "match": {"os": "linux"}},
            ]},
        })
    }

    fn node(name: &str, os: &str, blocks: &[&str]) -> Value {
        let spec = json!({"podCIDR": blocks.first(), "podCIDRs": blocks});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": os}}, "spec": spec})
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
            Case { name: "contains its own pool", os: "linux", block: "fd00::/47", expected: BlockStanding::Outside },
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
            let (net, node) = (net(block), node("own", os, &[block]));
            let mut held = held.clone();
            // Cases with such a large block are not about the block of the other Node.
            if net.prefix_len() < 20 {
                held.forget("other");
            }
            held.learn("own", vec![net]);
            let found = belonging(&settings, &node).placement(&settings, "own", &[net], &held);
            assert_eq!(found.blocks, [(net, expected)], "{name}");
            assert_eq!(found.pool.as_deref(), (os != "darwin").then_some(os), "{name}");
            let evidence = (os != "darwin").then(|| format!("kubernetes.io/os={os} (Node own)"));
            assert_eq!(found.evidence, evidence, "{name}");
        }
    }
}
