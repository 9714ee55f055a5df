//! How the blocks of node pools are used, and by which Nodes.

use std::sync::RwLock;

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_core::settings::{NodePool, Settings};
use ipnet::IpNet;

use super::evaluate::EvaluatedNode;
use super::{evaluate, findings};
use crate::audit::model::{self, Block, BlockRange, Finding, Nodes, State};
use crate::nodes::block_placement::{BlockPlacement, BlockStanding};
use crate::nodes::block_usage;

/// Audits the Nodes and adds their problems to `findings`; `None` if the settings have no node pools.
pub fn audit(live: &LiveSettings, snapshot: &RwLock<Snapshot>, findings: &mut Vec<Finding>) -> Option<Nodes> {
    let settings = &live.settings;
    if settings.nodes.pools.is_empty() {
        return None;
    }
    let evaluated = evaluate::all(settings, snapshot);
    let blocks: Vec<Block> = evaluated.iter().flat_map(blocks).collect();
    let pools = settings.nodes.pools.iter();
    let pools: Vec<model::NodePool> = pools.map(|pool| self::pool(settings, pool, &blocks)).collect();
    for node in &evaluated {
        findings::of_node(settings, node, findings);
    }
    findings::of_pools(settings, &pools, findings);
    let with_blocks = evaluated.iter().filter(|node| !node.placement.blocks.is_empty()).count();
    Some(Nodes { pools, count: evaluated.len(), with_blocks })
}

/// The blocks of a Node, with the Node's pool and evidence.
fn blocks(evaluated: &EvaluatedNode) -> impl Iterator<Item = Block> {
    let BlockPlacement { pool, evidence, reason, blocks } = &evaluated.placement;
    blocks.iter().map(|(block, standing)| Block {
        block: *block,
        state: if *standing == BlockStanding::InPlace { State::Used } else { State::Misplaced },
        node: evaluated.name.clone(),
        pool: pool.clone(),
        evidence: evidence.clone().or_else(|| reason.clone()),
    })
}

fn pool(settings: &Settings, pool: &NodePool, blocks: &[Block]) -> model::NodePool {
    let ranges = pool.cidrs.iter().filter_map(|cidr| range(settings, pool, *cidr, blocks));
    model::NodePool { name: pool.name.clone(), ranges: ranges.collect() }
}

/// The usage of a range; `None` if it can't be divided into blocks, which validated settings rule out.
fn range(settings: &Settings, pool: &NodePool, cidr: IpNet, blocks: &[Block]) -> Option<BlockRange> {
    let cut = pool.blocks(cidr).ok()?;
    let mut inside: Vec<Block> = blocks.iter().filter(|block| cut.indices(block.block).is_some()).cloned().collect();
    inside.sort_by(|a, b| (a.block, &a.node).cmp(&(b.block, &b.node)));
    Some(BlockRange {
        cidr,
        block_length: pool.block_size.of(clusterip_core::address::Family::of(cidr.addr())),
        counts: block_usage::counts(settings, pool, &cut, inside.iter().map(|block| block.block)),
        withheld: block_usage::withheld(settings, pool, &cut),
        blocks: inside,
    })
}
