//! How the blocks of node pools are used, and by which Nodes.

use std::sync::{Arc, RwLock};

use clusterip_core::settings::{NodePool, Settings};
use clusterip_host::cluster::lookups::snapshot::Snapshot;
use clusterip_host::live_settings::LiveSettings;
use clusterip_host::policy::module::Module;
use ipnet::IpNet;

use super::evaluate::EvaluatedNode;
use super::{evaluate, findings};
use crate::audit::cache::AuditCache;
use crate::audit::model::{self, Block, BlockRange, Finding, Nodes, State};
use crate::audit::services::evaluate::EvaluateError;
use crate::nodes::block_placement::{BlockPlacement, BlockStanding};
use crate::nodes::block_usage;

/// Audits the Nodes and adds their problems to `findings`; `None` if the settings have no node pools. The policy is
/// not asked again if an answer in `cache` still holds.
///
/// # Errors
/// [`EvaluateError`] for the first Node that the policy can't evaluate.
pub fn audit(
    module: &Module,
    live: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    cache: &mut AuditCache,
    findings: &mut Vec<Finding>,
) -> Result<Option<Nodes>, EvaluateError> {
    let settings = &live.settings;
    if settings.nodes.pools.is_empty() {
        return Ok(None);
    }
    let evaluated = evaluate::all(module, live, snapshot, &mut cache.nodes)?;
    let blocks: Vec<Block> = evaluated.iter().flat_map(blocks).collect();
    let pools = settings.nodes.pools.iter();
    let pools: Vec<model::NodePool> = pools.map(|pool| self::pool(settings, pool, &blocks)).collect();
    for node in &evaluated {
        findings::of_node(settings, node, findings);
    }
    findings::of_pools(settings, &pools, findings);
    let with_blocks = evaluated.iter().filter(|node| !node.placement.blocks.is_empty()).count();
    Ok(Some(Nodes { pools, count: evaluated.len(), with_blocks }))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_host::cluster::watch::service_ranges::ServiceRanges;
    use clusterip_host::live_settings::check_settings as checked;
    use clusterip_host::policy::module::EMBEDDED;
    use serde_json::{Value, json};

    use super::*;
    use crate::audit::model::Kind;

    fn live(module: &Module, linux: &str) -> LiveSettings {
        let pool = |os: &str, cidr: &str| json!({"name": os, "cidrs": [cidr], "match": {"os": os}});
        let pools = json!([pool("linux", linux), pool("windows", "10.1.0.0/16")]);
        checked(module, json!({"nodes": {"pools": pools}}), &ServiceRanges::default()).unwrap()
    }

    fn node(name: &str, os: &str, block: &str) -> Value {
        let metadata = json!({"name": name, "labels": {"kubernetes.io/os": os}});
        let spec = json!({"podCIDR": block, "podCIDRs": [block]});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    }

    #[test]
    fn cached_answers_are_dropped_when_their_object_or_settings_change() {
        let module = Module::new(EMBEDDED).unwrap();
        let snapshot = Arc::new(RwLock::new(Snapshot::default()));
        let mut cache = AuditCache::default();
        let mut found = |live: &LiveSettings, change: &dyn Fn(&mut Snapshot)| {
            change(&mut snapshot.write().unwrap());
            let mut findings = Vec::new();
            cache.renew(&live.hash);
            audit(&module, live, &snapshot, &mut cache, &mut findings).unwrap();
            assert_eq!(cache.nodes.len(), snapshot.read().unwrap().names("v1", "Node", None).len());
            findings.into_iter().map(|finding| (finding.kind, finding.node.unwrap_or_default())).collect::<Vec<_>>()
        };
        let (wrong, shared) = (Kind::WrongNodePool, Kind::SharedBlock);
        let (first, other) = (live(&module, "10.0.0.0/16"), live(&module, "10.2.0.0/16"));
        let own = |os: &'static str| move |all: &mut Snapshot| all.insert(node("a", os, "10.0.1.0/24"));
        assert_eq!(found(&first, &own("linux")), []);
        assert_eq!(found(&first, &|_| ()), [], "the same again");
        assert_eq!(found(&first, &own("windows")), [(wrong, "a".to_owned())], "other labels");
        assert_eq!(found(&first, &|_| ()), [(wrong, "a".to_owned())], "the same again");
        assert_eq!(found(&first, &own("linux")), [], "its labels of before");
        let twin = |all: &mut Snapshot| all.insert(node("b", "linux", "10.0.1.0/24"));
        let both = [(shared, "a".to_owned()), (shared, "b".to_owned())];
        assert_eq!(found(&first, &twin), both, "another Node");
        let gone = |all: &mut Snapshot| assert!(all.remove("v1", "Node", "", "b").is_some());
        assert_eq!(found(&first, &gone), [], "it is gone");
        assert_eq!(found(&other, &|_| ()), [(Kind::OutsideNodePool, "a".to_owned())], "other settings");
    }
}
