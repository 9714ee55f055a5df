//! Asks the policy which pool each Node belongs to.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use clusterip_host::cluster::lookups::snapshot::Snapshot;
use clusterip_host::live_settings::LiveSettings;
use clusterip_host::object::{Packed, blocks_of};
use clusterip_host::policy::module::Module;
use serde_json::Value;

use crate::audit::services::evaluate::EvaluateError;
use crate::nodes::block_placement::{self, Belonging, BlockPlacement};
use crate::nodes::held_blocks::HeldBlocks;

/// A Node and the placement of its blocks.
pub struct EvaluatedNode {
    /// Name of the Node.
    pub name: String,
    /// The pool that the Node belongs to, and where its blocks lie.
    pub placement: BlockPlacement,
}

/// Earlier answers of the policy by Node name, with the Node that each is about.
pub(in crate::audit) type NodeCache = HashMap<String, (Packed, Belonging)>;

/// Asks the policy about every Node, in the order of their names. An answer in `cache` is used again if its Node
/// has not changed.
///
/// # Errors
/// [`EvaluateError`] for the first Node that the policy can't evaluate.
pub(in crate::audit) fn all(
    module: &Module,
    live: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    cache: &mut NodeCache,
) -> Result<Vec<EvaluatedNode>, EvaluateError> {
    let nodes: Vec<(String, Packed)> = {
        let snapshot = Snapshot::read(snapshot);
        let names = snapshot.names("v1", "Node", None).into_iter();
        names.filter_map(|(_, name)| Some((name.clone(), snapshot.packed("v1", "Node", "", &name)?.clone()))).collect()
    };
    let nodes: Vec<(String, Packed, Value)> =
        nodes.into_iter().map(|(name, packed)| (name, packed.clone(), packed.value())).collect();
    let mut held = HeldBlocks::default();
    for (name, _, node) in &nodes {
        held.learn(name, blocks_of(node));
    }
    let failed = |subject: String| move |error| EvaluateError { subject, error };
    let mut policy = module.assigning().map_err(failed("nodes".to_owned()))?;
    let mut before = std::mem::take(cache);
    let mut evaluated = Vec::with_capacity(nodes.len());
    for (name, packed, node) in nodes {
        let belonging = match before.remove(&name) {
            Some((same, belonging)) if same == packed => belonging,
            _ => block_placement::belonging(&mut policy, &live.document, &node)
                .map_err(failed(format!("Node {name}")))?,
        };
        let placement = belonging.placement(&live.settings, &name, &blocks_of(&node), &held);
        cache.insert(name.clone(), (packed, belonging));
        evaluated.push(EvaluatedNode { name, placement });
    }
    Ok(evaluated)
}
