//! Asks the policy which pool each Node belongs to.

use std::sync::RwLock;

use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::object::{blocks_of, name};
use clusterip_core::settings::Settings;
use serde_json::Value;

use crate::nodes::block_placement::{self, BlockPlacement};
use crate::nodes::held_blocks::HeldBlocks;

/// A Node and the placement of its blocks.
pub struct EvaluatedNode {
    /// Name of the Node.
    pub name: String,
    /// The pool that the Node belongs to, and where its blocks lie.
    pub placement: BlockPlacement,
}

/// Decides about every Node, in the order of their names.
pub(in crate::audit) fn all(settings: &Settings, snapshot: &RwLock<Snapshot>) -> Vec<EvaluatedNode> {
    let nodes: Vec<Value> = Snapshot::read(snapshot).all("v1", "Node").collect();
    let mut held = HeldBlocks::default();
    nodes.iter().for_each(|node| held.learn(name(node), blocks_of(node)));
    let evaluated = |node: &Value| {
        let belonging = block_placement::belonging(settings, node);
        let placement = belonging.placement(settings, name(node), &blocks_of(node), &held);
        EvaluatedNode { name: name(node).to_owned(), placement }
    };
    nodes.iter().map(evaluated).collect()
}
