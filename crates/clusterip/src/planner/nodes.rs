//! Plans blocks for Nodes, one after the other, as a controller that starts now would assign them.

use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::manifests::Manifest;
use clusterip_cluster::object::blocks_of;
use clusterip_cluster::snapshot::Snapshot;
use clusterip_core::nodes::Node;
use clusterip_core::request::{Change, Request};
use clusterip_core::settings::{NodePool, Settings};
use clusterip_core::{Decision, InUse, decide};
use ipnet::IpNet;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Given, PlannedObject, Planner, Row, planned_name};
use crate::nodes::held_blocks::{HeldBlocks, fields_of};
use crate::usage::{self, Usage};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangeUsage {
    #[serde(rename = "name")]
    pub pool: String,
    pub cidr: IpNet,
    #[serde(flatten, serialize_with = "usage::plan_json")]
    pub usage: Usage,
}

impl Planner {
    /// Plans the Nodes among `manifests`, and counts how full the ranges are then. All blocks that Nodes have are
    /// occupied before the first block is handed out. `progress` is called after each Node.
    pub(super) fn plan_nodes(
        &mut self,
        manifests: &[Manifest<PlannedObject>],
        progress: &mut impl FnMut(),
    ) -> (Vec<Row>, Vec<RangeUsage>) {
        let mut held = HeldBlocks::default();
        self.existing_nodes.iter().for_each(|(name, (blocks, _))| held.learn(name, blocks.clone()));
        let nodes = || manifests.iter().enumerate().filter(|(_, manifest)| manifest.object.is_node());
        for (index, manifest) in nodes() {
            let mut node = manifest.object.value();
            let name = planned_name(&node, index);
            if let Some((blocks, _)) = self.existing_nodes.get(&name) {
                keep_blocks(&mut node, blocks);
            }
            // A second manifest of the same Node may have no blocks.
            let blocks = blocks_of(&node);
            if !blocks.is_empty() {
                held.learn(&name, blocks);
            }
            node["metadata"]["name"] = name.into();
            Snapshot::insert_in(&self.snapshot, &node);
        }
        let mut rows = Vec::new();
        for (index, manifest) in nodes() {
            rows.push(self.plan_node(index, manifest, &mut held));
            progress();
        }
        (rows, ranges(&self.settings, &held))
    }

    fn plan_node(&mut self, index: usize, manifest: &Manifest<PlannedObject>, held: &mut HeldBlocks) -> Row {
        let object = manifest.object.value();
        let (mut node, name) = (object.clone(), planned_name(&object, index));
        // The snapshot contains the Node under this name. Without it, the policy would treat the Node as another one.
        node["metadata"]["name"] = name.as_str().into();
        let existing = self.existing_nodes.get(&name).cloned();
        let old = existing.as_ref().map(|(blocks, _)| {
            keep_blocks(&mut node, blocks);
            let mut old = json!({"metadata": {"name": name}});
            keep_blocks(&mut old, blocks);
            old
        });
        let first = existing.as_ref().and_then(|(_, origin)| origin.as_ref());
        let warnings = first.map(|first| format!("the same Node as in {first}")).into_iter().collect();
        let allocation = blocks_of(&node).is_empty().then(|| held.allocation());
        let in_use = InUse { blocks: allocation.as_ref(), external: None };
        let cluster = StoredCluster::new(&self.snapshot, &node);
        let read = |node: &Value| Node::read(node, "request.object");
        let request = read(&node).and_then(|object| Ok(Change { object, old: old.as_ref().map(read).transpose()? }));
        let decision = match request {
            Ok(change) => decide(&Request::of_node(change), &self.settings, in_use, &cluster),
            Err(mismatch) => Decision::unreadable(&mismatch),
        };
        if decision.denial().is_some() {
            return Row::new(index, &object, &decision, Given::PodCidrs(Vec::new()), warnings);
        }
        if decision.assigned().is_some() {
            decision.carry_out(&mut node);
            held.hand_out(&name, blocks_of(&node), &self.settings.nodes);
        }
        Snapshot::insert_in(&self.snapshot, &node);
        let (blocks, origin) =
            (blocks_of(&node), existing.map_or_else(|| Some(manifest.origin.clone()), |(_, origin)| origin));
        self.existing_nodes.insert(name, (blocks.clone(), origin));
        Row::new(index, &object, &decision, Given::PodCidrs(blocks), warnings)
    }
}

fn ranges(settings: &Settings, held: &HeldBlocks) -> Vec<RangeUsage> {
    let held = || held.nodes().flat_map(|(_, blocks)| blocks.iter().copied());
    let range = |pool: &NodePool, cidr: IpNet| {
        // Checked settings have no range that can't be cut into blocks.
        let blocks = pool.blocks(cidr).ok()?;
        let usage = Usage::of_blocks(settings, pool, &blocks, held());
        Some(RangeUsage { pool: pool.name.clone(), cidr, usage })
    };
    let pools = settings.nodes.pools.iter();
    pools.flat_map(|pool| pool.cidrs.iter().filter_map(move |cidr| range(pool, *cidr))).collect()
}

/// Keeps the blocks in an update that does not mention them, as `kubectl apply` does.
fn keep_blocks(node: &mut Value, kept: &[IpNet]) {
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
    spec.extend(fields_of(kept));
}
