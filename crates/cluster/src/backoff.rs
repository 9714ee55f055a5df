//! The pauses before a failed operation is tried again.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use backon::ExponentialBuilder;
use kube::runtime::watcher::ExponentialBackoff;

/// The pause before an operation that has failed so often in a row is tried again: it doubles from `first` to `longest`.
pub fn pause_after(failures: u32, first: Duration, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(longest)
}

/// One to two times this pause: processes that have failed at the same moment must not all try again at the same moment.
pub fn with_jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) as f64 / u64::MAX as f64;
    pause + pause.mul_f64(random)
}

pub(crate) const MIN_RETRY_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const MAX_RETRY_PAUSE: Duration = Duration::from_secs(5);

/// The pauses between attempts: they double from 100 ms up to 5 s.
pub fn retry_backoff() -> ExponentialBackoff {
    let builder = ExponentialBuilder::new().with_min_delay(MIN_RETRY_PAUSE).with_max_delay(MAX_RETRY_PAUSE);
    builder.without_max_times().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let rows = [(1, 2), (2, 4), (3, 8), (5, 32), (6, 60), (33, 60), (u32::MAX, 60)];
        for (failures, seconds) in rows {
            let pause = pause_after(failures, Duration::from_secs(2), Duration::from_secs(60));
            assert_eq!(pause, Duration::from_secs(seconds), "after {failures} failures");
        }
        let pauses: Vec<u128> = retry_backoff().map(|pause| pause.as_millis()).take(8).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
