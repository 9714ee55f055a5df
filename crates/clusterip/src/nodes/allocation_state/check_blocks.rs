//! Compares the blocks that Nodes have with the pools of the Nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::super::block_placement::BlockStanding;
use super::super::watched_node::WatchedNode;
use super::AllocationState;
use crate::nodes::node_metrics::Misplaced;

impl AllocationState {
    /// The next Node whose blocks have to be compared with its pool. Report the result with
    /// [`Self::set_standings`].
    pub fn next_to_check(&mut self) -> Option<WatchedNode> {
        loop {
            let name = self.unchecked.pop_first()?;
            if let Some(entry) = self.nodes.get(&name).filter(|entry| !entry.node.blocks.is_empty()) {
                return Some(entry.node.clone());
            }
            self.misplaced.remove(&name);
        }
    }

    /// Whether there are Nodes whose blocks have to be compared with their pools.
    pub fn has_unchecked(&self) -> bool {
        !self.unchecked.is_empty()
    }

    /// Records whether the blocks of a Node are misplaced, and why.
    pub fn set_standings(&mut self, name: &str, standings: &[BlockStanding]) {
        let reasons: BTreeSet<Misplaced> = standings
            .iter()
            .filter_map(|standing| match standing {
                BlockStanding::InPlace => None,
                BlockStanding::Shared(_) => Some(Misplaced::Shared),
                BlockStanding::WrongPool(_) => Some(Misplaced::WrongPool),
                BlockStanding::Withheld(_) => Some(Misplaced::Withheld),
                BlockStanding::Outside => Some(Misplaced::Outside),
            })
            .collect();
        if reasons.is_empty() {
            self.misplaced.remove(name);
        } else {
            self.misplaced.insert(name.to_owned(), reasons);
        }
    }

    /// The number of Nodes with a misplaced block, by reason.
    pub fn misplaced(&self) -> BTreeMap<Misplaced, u64> {
        let mut counts = BTreeMap::new();
        for reason in self.misplaced.values().flatten() {
            *counts.entry(*reason).or_insert(0) += 1;
        }
        counts
    }
}
