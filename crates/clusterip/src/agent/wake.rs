//! When an agent has something to do next.

use tokio::time::Instant;

/// The moment of a plan, and the next one at which there is something to do.
pub(super) struct Wake {
    pub(super) now: Instant,
    pub(super) at: Option<Instant>,
}

impl Wake {
    /// There is something to do at this moment, if it is yet to come.
    pub(super) fn at(&mut self, at: Instant) {
        if at > self.now {
            self.at = Some(self.at.map_or(at, |known| known.min(at)));
        }
    }

    /// Whether it is time; if not, it will be.
    pub(super) fn is_due(&mut self, at: Instant) -> bool {
        self.at(at);
        self.now >= at
    }
}
