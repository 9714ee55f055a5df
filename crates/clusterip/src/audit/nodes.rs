//! How the blocks of the pools of Nodes are used, and by which Nodes.

use std::sync::{Arc, PoisonError, RwLock};

use clusterip_core::settings::{NodePool, Settings};
use ipnet::IpNet;
use serde_json::Value;

use super::judge::{JudgeError, Memory};
use super::model::{self, Block, BlockRange, Finding, Nodes, State};
use super::node_findings;
use crate::cluster::object::Packed;
use crate::cluster::snapshot::Snapshot;
use crate::live_settings::LiveSettings;
use crate::nodes::fill;
use crate::nodes::held::{Held, blocks_of};
use crate::nodes::placement::{self, Placement, Standing};
use crate::policy::module::Module;

/// A Node, and where its blocks lie.
pub struct Judged {
    /// Its name.
    pub name: String,
    /// What is known of it.
    pub placement: Placement,
}

/// What there is to tell of Nodes, and in `findings` what is wrong with them; nothing where the settings
/// have no pools for them. What is in `memory` and still holds is not asked for again.
///
/// # Errors
/// [`JudgeError`] for the first Node that the policy has no answer for.
pub fn audit(
    module: &Module,
    live: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    memory: &mut Memory,
    findings: &mut Vec<Finding>,
) -> Result<Option<Nodes>, JudgeError> {
    let settings = &live.settings;
    if settings.nodes.pools.is_empty() {
        return Ok(None);
    }
    let judged = judge(module, live, snapshot, memory)?;
    let blocks: Vec<Block> = judged.iter().flat_map(blocks).collect();
    let pools = settings.nodes.pools.iter();
    let pools: Vec<model::NodePool> = pools.map(|pool| self::pool(settings, pool, &blocks)).collect();
    for node in &judged {
        node_findings::of_node(settings, node, findings);
    }
    node_findings::of_pools(settings, &pools, findings);
    let count = judged.iter().filter(|node| !node.placement.blocks.is_empty()).count();
    Ok(Some(Nodes { pools, count }))
}

/// Asks about every Node, in the order of their names.
fn judge(
    module: &Module,
    live: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    memory: &mut Memory,
) -> Result<Vec<Judged>, JudgeError> {
    let nodes: Vec<(String, Packed)> = {
        let snapshot = snapshot.read().unwrap_or_else(PoisonError::into_inner);
        let names = snapshot.names("v1", "Node", None).into_iter();
        names.filter_map(|(_, name)| Some((name.clone(), snapshot.packed("v1", "Node", "", &name)?.clone()))).collect()
    };
    let nodes: Vec<(String, Packed, Value)> =
        nodes.into_iter().map(|(name, packed)| (name, packed.clone(), packed.value())).collect();
    let mut held = Held::default();
    for (name, _, node) in &nodes {
        held.learn(name, blocks_of(node));
    }
    let mut known = std::mem::take(&mut memory.nodes);
    let mut judged = Vec::with_capacity(nodes.len());
    for (name, packed, node) in nodes {
        let belonging = match known.remove(&name) {
            Some((same, belonging)) if same == packed => belonging,
            _ => placement::belonging(module, &live.document, &node)
                .map_err(|error| JudgeError { subject: format!("node {name}"), error })?,
        };
        let placement = belonging.held_against(&live.settings, &node, &held);
        memory.nodes.insert(name.clone(), (packed, belonging));
        judged.push(Judged { name, placement });
    }
    Ok(judged)
}

/// The blocks of a Node.
fn blocks(judged: &Judged) -> impl Iterator<Item = Block> {
    let Placement { pool, evidence, reason, blocks } = &judged.placement;
    blocks.iter().map(|(block, standing)| Block {
        block: *block,
        state: if *standing == Standing::InPlace { State::Used } else { State::Misplaced },
        node: judged.name.clone(),
        pool: pool.clone(),
        evidence: evidence.clone().or_else(|| reason.clone()),
    })
}

fn pool(settings: &Settings, pool: &NodePool, blocks: &[Block]) -> model::NodePool {
    let ranges = pool.cidrs.iter().filter_map(|cidr| range(settings, pool, *cidr, blocks));
    model::NodePool { name: pool.name.clone(), ranges: ranges.collect() }
}

/// A range; settings that were checked have none that can't be cut.
fn range(settings: &Settings, pool: &NodePool, cidr: IpNet, blocks: &[Block]) -> Option<BlockRange> {
    let cut = pool.blocks(cidr).ok()?;
    let mut inside: Vec<Block> = blocks.iter().filter(|block| cut.indices(block.block).is_some()).cloned().collect();
    inside.sort_by(|a, b| (a.block, &a.node).cmp(&(b.block, &b.node)));
    Some(BlockRange {
        cidr,
        block_length: pool.block_size.of(clusterip_core::address::Family::of(cidr.addr())),
        counts: fill::counts(settings, pool, &cut, inside.iter().map(|block| block.block)),
        withheld: fill::withheld(settings, pool, &cut),
        blocks: inside,
    })
}
