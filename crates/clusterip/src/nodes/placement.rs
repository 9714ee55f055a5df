//! Where a Node's blocks lie, and where they belong.
//!
//! The policy is asked, as if the Node were created now without blocks. What it answers is the Node's pool.

use clusterip_core::answer::Answer;
use clusterip_core::node::Allocation;
use clusterip_core::settings::{NodePool, Settings};
use ipnet::IpNet;
use serde_json::Value;

use super::held::{Held, blocks_of};
use crate::cluster::object::name;
use crate::policy::module::{Module, ModuleError};
use crate::policy::node_request::node_request;

/// Where a Node's blocks lie, and where they belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The pool that the Node belongs to; none where no pool is for it.
    pub pool: Option<String>,
    /// Why: the labels in words.
    pub evidence: Option<String>,
    /// Its blocks, and how each lies.
    pub blocks: Vec<(IpNet, Standing)>,
    /// What the policy says for itself where it would give none.
    pub reason: Option<String>,
}

/// How a block lies. What is wrong is reported, and never changed: the API server lets nobody change the
/// blocks of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Where it belongs, or in no pool on a Node that no pool is for.
    InPlace,
    /// Other Nodes have it too, or parts of it.
    Shared(Vec<(String, IpNet)>),
    /// In this pool, which is not the Node's.
    WrongPool(String),
    /// In its pool, and it has addresses of this range, which are never handed out.
    Withheld(IpNet),
    /// In no pool.
    Outside,
}

/// Asks the policy for the pool of a Node, and holds its blocks against that.
///
/// # Errors
/// [`ModuleError`] where the policy has no answer.
pub fn of(
    module: &Module,
    document: &Value,
    settings: &Settings,
    node: &Value,
    held: &Held,
) -> Result<Placement, ModuleError> {
    let answer = module.assign(&as_if_created(node), document, &Allocation::default())?;
    Ok(held_against(&answer, settings, node, held))
}

/// A request to create the Node now, without blocks.
pub fn as_if_created(node: &Value) -> Value {
    let mut object = node.clone();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("podCIDR");
        spec.remove("podCIDRs");
    }
    node_request("clusterip", &object)
}

/// Holds a Node's blocks against what the policy answers to [`as_if_created`].
pub fn held_against(answer: &Answer, settings: &Settings, node: &Value, held: &Held) -> Placement {
    let audit = answer.audit();
    let pool = audit.as_ref().and_then(|audit| audit.pool.clone());
    let own = settings.nodes.pools.iter().find(|own| Some(&own.name) == pool.as_ref());
    let standing = |block: IpNet| {
        let shared = held.sharing(name(node), block);
        if shared.is_empty() { lies(block, own, settings) } else { Standing::Shared(shared) }
    };
    Placement {
        evidence: audit.as_ref().and_then(|audit| audit.evidence.as_ref()).map(|evidence| evidence.describe()),
        blocks: blocks_of(node).into_iter().map(|block| (block, standing(block))).collect(),
        reason: audit.and_then(|audit| audit.reason),
        pool,
    }
}

fn lies(block: IpNet, own: Option<&NodePool>, settings: &Settings) -> Standing {
    let meets = |range: &IpNet| range.contains(&block) || block.contains(range);
    match settings.nodes.pools.iter().find(|pool| pool.cidr_of(block).is_some()) {
        Some(pool) if own == Some(pool) => {
            let withheld = settings.withheld_from(pool).find(|(range, _)| meets(range));
            withheld.map_or(Standing::InPlace, |(range, _)| Standing::Withheld(range))
        }
        Some(pool) => Standing::WrongPool(pool.name.clone()),
        None if own.is_some() => Standing::Outside,
        None => Standing::InPlace,
    }
}
