//! A Node, the pool that it belongs to, and where its blocks lie compared with that pool.

use ipnet::IpNet;
use serde_json::Value;

use crate::address::overlap;
use crate::decision::{Report, in_words};
use crate::distinct;
use crate::json::{Located, TypeMismatch};
use crate::label_selector::Labels;
use crate::services::MAX_FAMILIES;
use crate::settings::{NodePool, NodeSettings, Settings, Withheld};
use crate::workload::labelled;

/// The first pool, in the order of the settings, whose `match` matches the Node's labels.
pub fn choose<'s>(node: &Node, settings: &'s NodeSettings) -> Option<&'s NodePool> {
    settings.pools.iter().find(|pool| admits(pool, node))
}

fn admits(pool: &NodePool, node: &Node) -> bool {
    let matches = &pool.matches;
    matches.node_labels.iter().all(|(key, value)| labelled(&node.labels, key).as_ref() == Some(value))
        && matches.node_selector.matches(&node.labels)
}

/// The labels of the Node with the keys that these pools match on.
fn matched_labels(node: &Node, pools: &[NodePool]) -> Labels {
    let mut labels = Labels::new();
    for pool in pools {
        let selector = &pool.matches.node_selector;
        let keys = pool.matches.node_labels.keys().chain(selector.match_labels.keys());
        for key in keys.chain(selector.match_expressions.iter().map(|requirement| &requirement.key)) {
            if let Some(value) = labelled(&node.labels, key) {
                labels.insert(key.clone(), value);
            }
        }
    }
    labels
}

/// Why the Node belongs to this pool.
pub fn report(node: &Node, pool: &NodePool) -> Report {
    let labels = matched_labels(node, std::slice::from_ref(pool));
    let matches = &pool.matches;
    let source = if matches.node_labels.is_empty() && matches.node_selector.is_empty() {
        "default".to_owned()
    } else {
        format!("Node {}", node.name)
    };
    Report { source, labels, mixed: Vec::new() }
}

/// The reason why no pool matches this Node.
pub fn no_matching_pool(node: &Node, settings: &NodeSettings) -> String {
    let labels = matched_labels(node, &settings.pools);
    if labels.is_empty() {
        return "no pool of Nodes matches a Node without their labels".to_owned();
    }
    format!("no pool of Nodes matches {}", in_words(&labels))
}

/// The fields of a Node that a decision reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub labels: Labels,
    /// `spec.podCIDR` and `spec.podCIDRs`, without duplicates and without host bits. Values that can't be parsed are
    /// left out: the API server refuses them.
    pub blocks: Vec<IpNet>,
}

impl Node {
    /// Reads the fields of a Node object that is at `path` of a document.
    pub fn read(object: &Value, path: &str) -> Result<Self, TypeMismatch> {
        let object = Located::new(object, path);
        let (metadata, spec) = (object.at("metadata")?, object.at("spec")?);
        Ok(Self {
            name: metadata.text_of("name")?.unwrap_or_default().to_owned(),
            labels: metadata.map_of("labels")?,
            blocks: blocks(spec.text_of("podCIDR")?.into_iter().chain(spec.texts_of("podCIDRs", MAX_FAMILIES + 1)?)),
        })
    }
}

/// The blocks of a Node from `podCIDR` and `podCIDRs`, without duplicates and without host bits. Texts that are not a
/// CIDR are left out.
pub fn blocks<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<IpNet> {
    distinct(texts.filter_map(|text| Some(text.parse::<IpNet>().ok()?.trunc())))
}

/// Where a block of a Node lies, compared with the pool that the Node belongs to. Blocks of other Nodes don't matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlace<'s> {
    /// In the Node's pool. If no pool matches the Node: outside of all pools.
    Right,
    /// The block has addresses of this pool, which is not the Node's pool.
    OtherPool {
        pool: &'s NodePool,
        /// Whether one range of the other pool contains the whole block.
        is_whole: bool,
    },
    /// In the Node's pool, but with addresses of a range from which no block is handed out.
    Withheld { range: IpNet, why: Withheld<'s> },
    /// Partly in the Node's pool, and partly in no pool.
    PartlyInPool,
    /// In no pool, although a pool matches the Node.
    NoPool,
}

/// Where `block` lies, for a Node that belongs to the pool `own`.
///
/// The settings guarantee that ranges of pools don't overlap, so at most one pool contains the whole block. A block
/// that is larger than a range may have addresses of several pools. Then [`BlockPlace::OtherPool`] takes precedence
/// over [`BlockPlace::PartlyInPool`]: the order of the pools must not decide whether the conflict is seen.
pub fn place_of<'s>(block: IpNet, own: Option<&NodePool>, settings: &'s Settings) -> BlockPlace<'s> {
    let pools = &settings.nodes.pools;
    if let Some(pool) = pools.iter().find(|pool| pool.cidr_of(block).is_some()) {
        if own != Some(pool) {
            return BlockPlace::OtherPool { pool, is_whole: true };
        }
        let withheld = settings.withheld_from(pool).find(|(range, _)| overlap(*range, block));
        return withheld.map_or(BlockPlace::Right, |(range, why)| BlockPlace::Withheld { range, why });
    }
    if let Some(pool) = pools.iter().find(|pool| own != Some(*pool) && pool.meets(block)) {
        return BlockPlace::OtherPool { pool, is_whole: false };
    }
    match own {
        None => BlockPlace::Right,
        Some(own) if own.meets(block) => BlockPlace::PartlyInPool,
        Some(_) => BlockPlace::NoPool,
    }
}
