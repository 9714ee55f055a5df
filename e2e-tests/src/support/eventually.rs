//! Waits for conditions.

use std::time::{Duration, Instant};

/// The default time limit, which is longer than any step takes on a busy machine: requests of a killed command may arrive
/// for 90 s. To reach it is a failure.
pub const MAX_WAIT: Duration = Duration::from_secs(240);

/// Repeats `ask` until it returns a value.
pub async fn eventually<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(MAX_WAIT, what, ask).await
}

/// As [`eventually`], with another time limit.
pub async fn eventually_within<T>(patience: Duration, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(begun.elapsed() < patience, "waited {} s in vain for {what}", patience.as_secs());
        tokio::time::sleep(pause(begun)).await;
    }
}

/// The pause before the next attempt. Pauses grow, because many tests that ask fifty times a second slow down the API
/// server.
pub fn pause(begun: Instant) -> Duration {
    (begun.elapsed() / 10).clamp(Duration::from_millis(20), Duration::from_millis(200))
}
