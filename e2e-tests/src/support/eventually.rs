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
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited {} s in vain for {what}", patience.as_secs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
