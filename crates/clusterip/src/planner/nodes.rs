//! Plans blocks for the Nodes of manifests, one Node after the other, as a controller that starts now would assign
//! them.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::manifests::Manifest;
use clusterip_cluster::object::{self, Packed, blocks_of};
use clusterip_cluster::policy::own_requests::node_request;
use clusterip_core::decision::Report;
use clusterip_core::settings::{NodePool, Settings};
use clusterip_core::{Decision, InUse, Verdict, decide_value};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Existing, shown_name};
use crate::nodes::blocks::{HeldBlocks, fields_of};
use crate::usage::{self, Usage};

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// The name of the Node. If the name is yet to be generated, `generateName` with an ellipsis.
    pub name: String,
    pub decision: Verdict,
    /// The pool of the Node; `None` if no pool matches it.
    pub pool: Option<String>,
    /// The labels by which the Node belongs to the pool.
    pub evidence: Option<Report>,
    /// The blocks of the Node after the plan.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<IpNet>,
    pub warnings: Vec<String>,
    pub message: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangeUsage {
    #[serde(rename = "name")]
    pub pool: String,
    pub cidr: IpNet,
    #[serde(flatten, serialize_with = "usage::plan_json")]
    pub usage: Usage,
}

#[derive(Clone, Debug, Default)]
pub struct NodePlan {
    /// A row for each Node, in the order of the manifests.
    pub rows: Vec<NodeRow>,
    /// For each row: the index of its manifest.
    pub manifests: Vec<usize>,
    pub ranges: Vec<RangeUsage>,
}

pub(super) struct NodePlanner<'m> {
    settings: &'m Settings,
    snapshot: &'m Arc<RwLock<Snapshot>>,
    held: HeldBlocks,
    /// The Nodes that exist already, by name.
    there: BTreeMap<String, Existing>,
}

impl<'m> NodePlanner<'m> {
    /// A planner for a cluster with these Nodes. `snapshot` contains the planned ones, too.
    pub(super) fn new(
        settings: &'m Settings,
        snapshot: &'m Arc<RwLock<Snapshot>>,
        there: BTreeMap<String, Existing>,
    ) -> Self {
        let mut held = HeldBlocks::default();
        there.iter().for_each(|(name, node)| held.learn(name, blocks_of(&node.object.value())));
        Self { settings, snapshot, held, there }
    }

    /// Learns the Nodes among `manifests`, with the blocks that they have. All these blocks are occupied before the
    /// first block is handed out.
    pub(super) fn learn(&mut self, manifests: &[Manifest]) {
        for (index, manifest) in manifests.iter().enumerate().filter(|(_, manifest)| manifest.is_node()) {
            let mut node = manifest.object.value();
            let name = key(&node, index);
            if let Some(there) = self.there.get(&name) {
                keep_blocks(&mut node, &there.object.value());
            }
            // A second manifest of the same Node may have no blocks.
            let blocks = blocks_of(&node);
            if !blocks.is_empty() {
                self.held.learn(&name, blocks);
            }
            self.insert(&name, node);
        }
    }

    /// Plans the Nodes among `manifests`. `progress` is called after each Node.
    pub(super) fn plan(mut self, manifests: &[Manifest], mut progress: impl FnMut()) -> NodePlan {
        let mut plan = NodePlan::default();
        for (index, manifest) in manifests.iter().enumerate().filter(|(_, manifest)| manifest.is_node()) {
            plan.rows.push(self.plan_node(index, manifest));
            plan.manifests.push(index);
            progress();
        }
        plan.ranges = self.ranges();
        plan
    }

    fn plan_node(&mut self, index: usize, manifest: &Manifest) -> NodeRow {
        let mut node = manifest.object.value();
        let name = key(&node, index);
        // The snapshot contains the Node under this name. Without it, the policy would treat the Node as another one.
        node["metadata"]["name"] = name.as_str().into();
        let (mut old, mut warnings) = (None, Vec::new());
        if let Some(there) = self.there.get(&name) {
            let before = there.object.value();
            keep_blocks(&mut node, &before);
            warnings.extend(there.origin.as_ref().map(|first| format!("the same Node as in {first}")));
            old = Some(before);
        }
        let request = node_request(&node, old.as_ref());
        let allocation = blocks_of(&node).is_empty().then(|| self.held.allocation());
        let in_use = InUse { blocks: allocation.as_ref(), external: None };
        let cluster = StoredCluster::new(self.snapshot, &node);
        let decision = decide_value(&request, self.settings, in_use, &cluster);
        let row = row(&manifest.object.value(), &node, &decision, warnings);
        if decision.denial().is_none() {
            if decision.assigned().is_some() {
                decision.carry_out(&mut node);
                self.held.hand_out(&name, blocks_of(&node), &self.settings.nodes);
            }
            self.insert(&name, node.clone());
            let origin = self.there.remove(&name).map_or_else(|| Some(manifest.origin.clone()), |there| there.origin);
            self.there.insert(name, Existing { object: Packed::new(&node), origin });
        }
        row
    }

    /// Inserts a Node into the snapshot, under the name that this planner uses for it.
    fn insert(&self, name: &str, mut node: Value) {
        node["metadata"]["name"] = name.into();
        Snapshot::insert_in(self.snapshot, &node);
    }

    fn ranges(&self) -> Vec<RangeUsage> {
        let held = || self.held.nodes().flat_map(|(_, blocks)| blocks.iter().copied());
        let range = |pool: &NodePool, cidr: IpNet| {
            // Checked settings have no range that can't be cut into blocks.
            let blocks = pool.blocks(cidr).ok()?;
            let usage = Usage::of_blocks(self.settings, pool, &blocks, held());
            Some(RangeUsage { pool: pool.name.clone(), cidr, usage })
        };
        let pools = self.settings.nodes.pools.iter();
        pools.flat_map(|pool| pool.cidrs.iter().filter_map(move |cidr| range(pool, *cidr))).collect()
    }
}

/// The key of a Node: its name. If the name is yet to be generated, a text that can't be the name of a Node.
fn key(node: &Value, index: usize) -> String {
    let name = object::name(node);
    if name.is_empty() { format!("{}/{index}", shown_name(node)) } else { name.to_owned() }
}

/// Keeps the blocks in an update that does not mention them, as `kubectl apply` does.
fn keep_blocks(node: &mut Value, old: &Value) {
    let kept = blocks_of(old);
    if kept.is_empty() || !blocks_of(node).is_empty() {
        return;
    }
    let Some(fields) = node.as_object_mut() else { return };
    let spec = fields.entry("spec").or_insert(Value::Null);
    if spec.is_null() {
        *spec = Value::Object(Map::new());
    }
    // The policy refuses a `spec` that is not an object.
    let Some(spec) = spec.as_object_mut() else { return };
    spec.extend(fields_of(&kept));
}

fn row(manifest: &Value, node: &Value, decision: &Decision, mut warnings: Vec<String>) -> NodeRow {
    warnings.extend(decision.cut_warnings());
    NodeRow {
        name: shown_name(manifest),
        decision: decision.verdict.clone(),
        pool: decision.pool.clone(),
        evidence: decision.evidence.clone(),
        pod_cidrs: match (decision.denial(), decision.assigned()) {
            (Some(_), _) => Vec::new(),
            (None, Some(blocks)) => blocks.to_vec(),
            (None, None) => blocks_of(node),
        },
        warnings,
        message: decision.verdict.reason().map(str::to_owned),
    }
}
