//! The stages of a Node, and the queues that depend on them.

use tokio::time::Instant;

use super::{AllocationState, FIRST_PAUSE, MAX_PAUSE};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The Node has blocks, or does not need any.
    Settled,
    Queued,
    /// The policy is being asked.
    Asked,
    /// Its blocks are being written.
    Patching,
    /// The next try is not before this time.
    Later(Instant),
    /// The pool with this name has no free block for the Node.
    Full(String),
    /// No pool matches the Node.
    NoMatchingPool,
}

impl Stage {
    fn waits(&self) -> bool {
        !matches!(self, Self::Settled | Self::NoMatchingPool)
    }
}

impl AllocationState {
    pub(super) fn pause(&mut self, name: &str, now: Instant) {
        let Some(entry) = self.nodes.get_mut(name) else { return };
        let pause = MAX_PAUSE.min(FIRST_PAUSE * 2_u32.saturating_pow(entry.failures.min(16)));
        entry.failures = entry.failures.saturating_add(1);
        self.set(name, Stage::Later(now + pause));
    }

    pub(super) fn set(&mut self, name: &str, stage: Stage) {
        let Some(entry) = self.nodes.get_mut(name) else { return };
        let before = std::mem::replace(&mut entry.stage, stage.clone());
        match &before {
            Stage::Later(due) => {
                self.later.remove(&(*due, name.to_owned()));
            }
            Stage::Full(pool) => {
                if let Some(waiting) = self.full.get_mut(pool) {
                    waiting.remove(&(entry.since, name.to_owned()));
                }
                self.full.retain(|_, waiting| !waiting.is_empty());
            }
            _ => {}
        }
        match &stage {
            Stage::Queued if before != Stage::Queued => self.queue.push_back(name.to_owned()),
            Stage::Later(due) => {
                self.later.insert((*due, name.to_owned()));
            }
            Stage::Full(pool) => {
                self.full.entry(pool.clone()).or_default().insert((entry.since, name.to_owned()));
            }
            Stage::Patching | Stage::Settled => entry.since = 0,
            _ => {}
        }
        self.waiting = self.waiting + usize::from(stage.waits()) - usize::from(before.waits());
    }
}
