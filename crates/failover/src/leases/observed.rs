//! How long something that another process renews has been unchanged.

use std::time::Duration;

use tokio::time::Instant;

/// A value that another process renews, and since when this process has seen it unchanged.
///
/// No clock of the other process is trusted: the value counts as abandoned only after this process has seen it
/// unchanged for its whole duration, on a clock that never jumps.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed<T> {
    /// The value as it was seen last.
    pub value: T,
    /// When the value was first seen like this.
    pub since: Instant,
    /// Whether the value was seen to change, which proves that its holder is alive.
    pub changed: bool,
}

impl<T> Observed<T> {
    /// A value that is seen for the first time.
    pub fn first(value: T, now: Instant) -> Self {
        Self { value, since: now, changed: false }
    }

    /// Combines what was just read with what was seen before.
    pub fn next(before: Option<Self>, value: T, now: Instant) -> Self
    where
        T: PartialEq,
    {
        match before {
            Some(before) if before.value == value => before,
            before => Self { value, since: now, changed: before.is_some() },
        }
    }

    /// When the value will have been unchanged for this long.
    pub fn end(&self, duration: Duration) -> Instant {
        self.since + duration
    }

    /// Whether the value has been unchanged for this long.
    pub fn is_unchanged_for(&self, duration: Duration, now: Instant) -> bool {
        now >= self.end(duration)
    }

    /// Counts the value as unchanged for exactly `duration`, so that what is done after a longer time is done again
    /// only later.
    pub fn restart(&mut self, duration: Duration, now: Instant) {
        self.since = now.checked_sub(duration).unwrap_or(now);
    }
}
