//! The state of all Nodes while this process leads: which have blocks, which wait for blocks, and why.
//!
//! # Guarantees
//! - A block stays reserved for a Node until it is certain that the Node does not get it: the API server may still
//!   carry out a request that it has not answered.
//! - The policy is never asked twice about a Node at once. The Node that has waited longest comes first.
//! - The state depends only on the events. It uses no clock and sends no requests.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::time::Duration;

use clusterip_cluster::backoff::pause_after;
use clusterip_core::settings::NodeSettings;
use clusterip_core::{Decision, Verdict};
use ipnet::IpNet;
use tokio::time::Instant;

use crate::nodes::held_blocks::HeldBlocks;
use crate::nodes::node_metrics::Misplaced;
use crate::nodes::node_writer::{BlockWrite, WatchedNode, WriteOutcome};

/// How soon a Node is tried again after its blocks could not be written. Each further failure doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    Queued,
    Later(Instant),
    /// The Node waits for a free block of the pool with this name.
    Full(String),
    Asked,
    Patching,
    /// The Node has blocks, or does not need any.
    #[default]
    Settled,
    NoMatchingPool,
}

#[derive(Default)]
pub struct AllocationState {
    nodes: BTreeMap<String, Entry>,
    pub held: HeldBlocks,
    /// The Nodes without blocks that need some, by their stage and their turn there.
    pub(super) waiting: BTreeSet<(Stage, u64, String)>,
    /// The pools that have had no free block since a block was last released.
    full: BTreeSet<String>,
    turns: u64,
    pub(super) unchecked: BTreeSet<String>,
    misplaced: BTreeMap<String, BTreeSet<Misplaced>>,
}

#[derive(Default)]
struct Entry {
    node: WatchedNode,
    stage: Stage,
    failures: u32,
    /// The version at which a request without an answer may still be carried out; `None` if there is no such request.
    doubt: Option<String>,
    /// The turn in which the Node came to its stage.
    turn: u64,
    /// The turn in which the Node began to wait for a free block; 0 if it does not wait.
    since: u64,
    reported: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    Ask(Box<WatchedNode>),
    Write(Box<BlockWrite>),
}

impl AllocationState {
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn apply(&mut self, seen: WatchedNode) {
        let name = seen.name.clone();
        if self.nodes.get(&name).is_some_and(|entry| entry.node.uid != seen.uid) {
            self.remove(&name);
        }
        let Some(entry) = self.nodes.get_mut(&name) else {
            let (blocks, deleting) = (seen.blocks.clone(), seen.deleting);
            self.nodes.insert(name.clone(), Entry { node: seen, ..Entry::default() });
            if !blocks.is_empty() {
                self.learn(&name, blocks);
            } else if !deleting {
                self.set(&name, Stage::Queued);
            }
            return;
        };
        let other = entry.node.unassigned != seen.unassigned;
        if !seen.blocks.is_empty() {
            let blocks = seen.blocks.clone();
            entry.node = seen;
            self.has_blocks(&name, blocks, other);
            return;
        }
        // The blocks of a Node can't be removed, so an event without blocks is older than the recorded Node.
        if !entry.node.blocks.is_empty() {
            return;
        }
        let (deleting, stage) = (seen.deleting, entry.stage.clone());
        entry.node = seen;
        // Retry the assigned blocks until the write is known to have failed.
        let given = !self.held.of(&name).is_empty();
        match stage {
            Stage::Asked | Stage::Patching => {}
            _ if deleting && !given => self.set(&name, Stage::Settled),
            Stage::Later(_) | Stage::Full(_) | Stage::NoMatchingPool if other && !given => {
                self.set(&name, Stage::Queued)
            }
            _ => {}
        }
    }

    pub fn delete(&mut self, name: &str, uid: &str) {
        if self.nodes.get(name).is_some_and(|entry| entry.node.uid == uid) {
            self.remove(name);
        }
    }

    pub fn retain_listed(&mut self, listed: &BTreeSet<String>) {
        let gone: Vec<String> = self.nodes.keys().filter(|name| !listed.contains(*name)).cloned().collect();
        gone.iter().for_each(|name| self.remove(name));
    }

    /// Handles a change of the settings: queues waiting Nodes again, and lets all blocks be checked again.
    pub fn settings_changed(&mut self) {
        let mut again: Vec<(u64, String)> = Vec::new();
        for (name, entry) in &mut self.nodes {
            let given = !self.held.of(name).is_empty();
            match entry.stage {
                Stage::Later(_) if given => {}
                Stage::Later(_) | Stage::NoMatchingPool => again.push((u64::MAX, name.clone())),
                Stage::Full(_) => again.push((entry.since, name.clone())),
                _ => continue,
            }
            (entry.reported, entry.failures) = (None, 0);
        }
        again.sort();
        again.iter().for_each(|(_, name)| self.set(name, Stage::Queued));
        self.full.clear();
        self.unchecked = self.held.nodes().map(|(name, _)| name.to_owned()).collect();
        self.misplaced.retain(|name, _| self.unchecked.contains(name));
    }

    /// The first Node in a stage that does not come before this one.
    fn first_from(&self, stage: Stage, turn: u64) -> Option<&(Stage, u64, String)> {
        self.waiting.range((stage, turn, String::new())..).next()
    }

    pub fn due(&self) -> Option<Instant> {
        match self.first_from(Stage::Queued, u64::MAX)?.0 {
            Stage::Later(due) => Some(due),
            _ => None,
        }
    }

    pub fn wake(&mut self, now: Instant) {
        while let Some((Stage::Later(due), _, name)) = self.first_from(Stage::Queued, u64::MAX).cloned()
            && due <= now
        {
            self.set(&name, Stage::Queued);
        }
    }

    pub fn has_task(&self) -> bool {
        self.next_name().is_some()
    }

    /// The Node that waits longest for a pool that may have a free block again, otherwise the first in the queue.
    fn next_name(&self) -> Option<&String> {
        let mut found = self.first_from(Stage::Full(String::new()), 0);
        while let Some((Stage::Full(pool), _, name)) = found {
            if !self.full.contains(pool) {
                return Some(name);
            }
            found = self.first_from(Stage::Full(pool.clone()), u64::MAX);
        }
        self.waiting.first().filter(|(stage, ..)| *stage == Stage::Queued).map(|(_, _, name)| name)
    }

    /// The next task. Report its result with [`Self::decided`] or [`Self::written`].
    pub fn next_task(&mut self) -> Option<Task> {
        let name = self.next_name()?.clone();
        let blocks = self.held.of(&name).to_vec();
        self.set(&name, if blocks.is_empty() { Stage::Asked } else { Stage::Patching });
        let entry = self.nodes.get(&name)?;
        Some(if blocks.is_empty() {
            Task::Ask(Box::new(entry.node.clone()))
        } else {
            Task::Write(Box::new(BlockWrite { node: entry.node.clone(), blocks, doubt: entry.doubt.clone() }))
        })
    }

    pub fn decided(
        &mut self,
        name: &str,
        decision: &Decision,
        settings: &NodeSettings,
        now: Instant,
    ) -> Option<Box<BlockWrite>> {
        let entry = self.nodes.get_mut(name)?;
        match (&decision.verdict, &decision.pool) {
            (Verdict::Assigned(blocks), _) => {
                let write = BlockWrite { node: entry.node.clone(), blocks: blocks.clone(), doubt: None };
                self.held.hand_out(name, blocks.clone(), settings);
                self.set(name, Stage::Patching);
                return Some(Box::new(write));
            }
            (Verdict::Denied(_), Some(pool)) => {
                self.full.insert(pool.clone());
                self.set(name, Stage::Full(pool.clone()));
            }
            (Verdict::Denied(_), None) => self.pause(name, now),
            (Verdict::Unchanged(_) | Verdict::Allocated(_), _) => self.set(name, Stage::NoMatchingPool),
        }
        None
    }

    pub fn written(&mut self, write: &BlockWrite, outcome: WriteOutcome, now: Instant) {
        let name = write.node.name.as_str();
        // If the watch has already delivered the change, the outcome is outdated.
        let Some(entry) = self.nodes.get_mut(name) else { return };
        if entry.node.uid != write.node.uid || entry.stage != Stage::Patching {
            return;
        }
        match outcome {
            WriteOutcome::Written => {
                entry.node.blocks.clone_from(&write.blocks);
                self.has_blocks(name, write.blocks.clone(), false);
            }
            WriteOutcome::Changed(seen) if !seen.blocks.is_empty() => self.apply(*seen),
            WriteOutcome::Changed(seen) => {
                let deleting = seen.deleting;
                (entry.node, entry.doubt) = (*seen, None);
                self.release(name);
                self.set(name, if deleting { Stage::Settled } else { Stage::Queued });
            }
            // If the Node was deleted, the watch delivers that next.
            WriteOutcome::Gone | WriteOutcome::Refused(_) | WriteOutcome::TooLate => {
                entry.doubt = None;
                self.release(name);
                self.pause(name, now);
            }
            WriteOutcome::Unclear { doubt, .. } => {
                entry.doubt = doubt;
                self.pause(name, now);
            }
        }
    }

    /// Whether `text` differs from the last report about the Node. Records it as the last report.
    pub fn is_news(&mut self, name: &str, text: &str) -> bool {
        let Some(entry) = self.nodes.get_mut(name) else { return false };
        let news = entry.reported.as_deref() != Some(text);
        entry.reported = Some(text.to_owned());
        news
    }

    /// Records that a Node has these blocks, whether this process or another program has written them.
    fn has_blocks(&mut self, name: &str, blocks: Vec<IpNet>, other: bool) {
        if let Some(entry) = self.nodes.get_mut(name) {
            (entry.doubt, entry.reported, entry.failures) = (None, None, 0);
        }
        self.set(name, Stage::Settled);
        if self.held.of(name) != blocks {
            self.learn(name, blocks);
        } else if other {
            self.unchecked.insert(name.to_owned());
        }
    }

    fn learn(&mut self, name: &str, blocks: Vec<IpNet>) {
        self.release(name);
        for block in blocks.iter().filter(|block| !self.held.is_free(**block)) {
            self.unchecked.extend(self.held.sharing(name, *block).into_iter().map(|(other, _)| other));
        }
        self.held.learn(name, blocks);
        self.unchecked.insert(name.to_owned());
    }

    fn release(&mut self, name: &str) {
        let blocks = self.held.of(name).to_vec();
        if blocks.is_empty() {
            return;
        }
        self.held.forget(name);
        // The block of another Node may no longer be shared, so that Node is checked again.
        for block in blocks.into_iter().filter(|block| !self.held.is_free(*block)) {
            self.unchecked.extend(self.held.sharing(name, block).into_iter().map(|(other, _)| other));
        }
        self.full.clear();
    }

    fn remove(&mut self, name: &str) {
        self.release(name);
        self.set(name, Stage::Settled);
        self.nodes.remove(name);
        self.misplaced.remove(name);
    }

    /// The next Node whose blocks have to be compared with its pool, for [`Self::set_misplaced`].
    pub fn next_to_check(&mut self) -> Option<WatchedNode> {
        loop {
            let name = self.unchecked.pop_first()?;
            if let Some(entry) = self.nodes.get(&name).filter(|entry| !entry.node.blocks.is_empty()) {
                return Some(entry.node.clone());
            }
            self.misplaced.remove(&name);
        }
    }

    pub fn set_misplaced(&mut self, name: &str, reasons: BTreeSet<Misplaced>) {
        if reasons.is_empty() {
            self.misplaced.remove(name);
        } else {
            self.misplaced.insert(name.to_owned(), reasons);
        }
    }

    fn pause(&mut self, name: &str, now: Instant) {
        let Some(entry) = self.nodes.get_mut(name) else { return };
        entry.failures = entry.failures.saturating_add(1);
        let pause = pause_after(entry.failures, FIRST_PAUSE, MAX_PAUSE);
        self.set(name, Stage::Later(now + pause));
    }

    fn set(&mut self, name: &str, stage: Stage) {
        let Some(entry) = self.nodes.get_mut(name).filter(|entry| entry.stage != stage) else { return };
        self.turns += 1;
        match &stage {
            Stage::Full(_) if entry.since == 0 => entry.since = self.turns,
            Stage::Patching | Stage::Settled => entry.since = 0,
            _ => {}
        }
        let turn = if matches!(stage, Stage::Full(_)) { entry.since } else { self.turns };
        let before = (replace(&mut entry.stage, stage.clone()), replace(&mut entry.turn, turn), name.to_owned());
        self.waiting.remove(&before);
        if !matches!(stage, Stage::Settled | Stage::NoMatchingPool) {
            self.waiting.insert((stage, turn, before.2));
        }
    }

    pub fn misplaced(&self) -> BTreeMap<Misplaced, u64> {
        let mut counts = BTreeMap::new();
        for reason in self.misplaced.values().flatten() {
            *counts.entry(*reason).or_insert(0) += 1;
        }
        counts
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
mod tests;
