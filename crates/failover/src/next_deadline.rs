//! The next time at which an agent has to plan again.

use tokio::time::Instant;

/// Collects the times at which there is something to do, and keeps the earliest one in the future.
pub struct NextDeadline {
    /// The time of the plan.
    pub now: Instant,
    /// The earliest deadline after `now`; `None` if there is none.
    pub earliest: Option<Instant>,
}

impl NextDeadline {
    /// Adds a deadline. A deadline that has passed is ignored.
    pub fn add(&mut self, deadline: Instant) {
        if deadline > self.now {
            self.earliest = Some(self.earliest.map_or(deadline, |known| known.min(deadline)));
        }
    }

    /// Whether a deadline has passed; adds it if it has not.
    pub fn is_due(&mut self, deadline: Instant) -> bool {
        self.add(deadline);
        self.now >= deadline
    }
}
