//! Waiting for what takes its time.

use std::time::{Duration, Instant};

/// Longer than anything takes on a machine under load: to wait for so long is a failure, not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Asks again and again, until there is an answer.
pub async fn eventually<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(PATIENCE, what, ask).await
}

/// The same, for what others take their time for.
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

/// How long to wait before the next question. The pauses grow, because many tests that ask fifty times a second keep
/// the API server from the work that they wait for.
pub fn pause(begun: Instant) -> Duration {
    (begun.elapsed() / 10).clamp(Duration::from_millis(20), Duration::from_millis(200))
}
