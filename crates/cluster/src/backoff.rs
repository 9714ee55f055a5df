//! The pauses before a failed operation is tried again.

use std::time::Duration;

use kube::runtime::utils::Backoff;

/// The longest pause before a failed watch is tried again.
pub const MAX_RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The pauses between attempts: they double from 100 ms up to [`MAX_RETRY_PAUSE`].
#[derive(Default)]
pub struct RetryBackoff {
    failures: u32,
}

impl Iterator for RetryBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let longest = MAX_RETRY_PAUSE.min(Duration::from_millis(100) * 2_u32.saturating_pow(self.failures.min(16)));
        self.failures = self.failures.saturating_add(1);
        Some(longest)
    }
}

impl Backoff for RetryBackoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}
