//! Assigns blocks to a Node. The host sends the blocks in use, and where the search for the next one starts.

use ipnet::IpNet;
use serde_json::Value;

use super::object::Node;
use super::pool::{no_matching_pool, report};
use crate::address::Family;
use crate::decision::{Denial, Verdict};
use crate::json::{Located, TypeMismatch};
use crate::settings::{NodePool, Settings};

/// The state of the pools of Nodes. The policy keeps no blocks between requests, so the host sends this state with each
/// request for blocks, and records the blocks that it gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// The blocks in use. An entry may also be a part of a block or a larger range; any order.
    pub held: Vec<IpNet>,
    /// For each range of a pool, the block that was handed out last.
    pub last: Vec<IpNet>,
}

impl Allocation {
    /// Reads the state; `None` for `null`.
    pub fn read(value: &Value) -> Result<Option<Self>, TypeMismatch> {
        if value.is_null() {
            return Ok(None);
        }
        let at = Located::new(value, "allocation");
        let list = |key: &str| -> Result<Vec<IpNet>, TypeMismatch> {
            let Some(list) = at.get(key)? else { return Ok(Vec::new()) };
            list.items()?.map(|item| item.text()?.parse().map_err(|_| item.mismatch("a CIDR"))).collect()
        };
        Ok(Some(Self { held: list("held")?, last: list("last")? }))
    }
}

/// Assigns one block of each family of the Node's pool. If one family has no free block, the Node gets no block.
pub(super) fn assign(node: &Node, own: Option<&NodePool>, settings: &Settings, allocation: &Allocation) -> Verdict {
    let Some(pool) = own else { return Verdict::Unchanged(no_matching_pool(node, &settings.nodes)) };
    let mut blocks = Vec::new();
    for family in pool.families() {
        match next(pool, family, settings, allocation) {
            Some(block) => blocks.push(block),
            None => return Verdict::Denied(full(node, pool, family)),
        }
    }
    Verdict::Assigned(blocks)
}

/// The next free block of a family. The ranges of the pool are tried in order; in a range, the search starts behind the
/// block that was handed out last.
fn next(pool: &NodePool, family: Family, settings: &Settings, allocation: &Allocation) -> Option<IpNet> {
    pool.cidrs_of(family).find_map(|cidr| {
        // Checked settings contain no range that can't be cut into blocks.
        let mut allocator = settings.block_allocator(pool, cidr).ok()?;
        for held in &allocation.held {
            // An error means that the block lies in another range, so it occupies nothing here.
            let _ = allocator.occupy(*held);
        }
        for last in &allocation.last {
            allocator.continue_behind(*last);
        }
        allocator.allocate_next().ok()
    })
}

fn full(node: &Node, pool: &NodePool, family: Family) -> Denial {
    let ranges: Vec<String> = pool.cidrs_of(family).map(|cidr| cidr.to_string()).collect();
    let message = format!(
        "Node {}: pool {:?} ({}) is full: no block of /{} is free; chosen by {}; add a range to the pool, or delete \
         Nodes that no longer exist",
        node.name,
        pool.name,
        ranges.join(", "),
        pool.block_size.of(family),
        report(node, pool).describe(),
    );
    // The API server uses the same status if a range is full.
    Denial { code: 500, message }
}
