//! When an agent has to plan again.

use tokio::time::Instant;

/// The time of a plan, and the next time at which there is something to do.
pub(super) struct Wake {
    pub(super) now: Instant,
    pub(super) at: Option<Instant>,
}

impl Wake {
    /// There is something to do at `at`, if that is in the future.
    pub(super) fn at(&mut self, at: Instant) {
        if at > self.now {
            self.at = Some(self.at.map_or(at, |known| known.min(at)));
        }
    }

    /// Whether `at` has come; if not, there is something to do then.
    pub(super) fn is_due(&mut self, at: Instant) -> bool {
        self.at(at);
        self.now >= at
    }
}
