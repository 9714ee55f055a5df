//! Lets seamless moves that run at the same time change Services at the same moments.

use std::sync::Arc;
use std::time::Duration;

use clusterip_moves::seamless::PROXY_IDLE;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// How long a window is open.
const LENGTH: Duration = Duration::from_millis(200);

/// The windows of time in which moves may begin to change Services, each [`PROXY_IDLE`] after the last. After a change at any other time, kube-proxy could
/// program one half of the swap of another move alone.
#[derive(Clone, Debug, Default)]
pub(super) struct ChangeWindows {
    /// When the latest window has begun or will begin.
    latest: Arc<Mutex<Option<Instant>>>,
}

impl ChangeWindows {
    /// Waits until a window is open.
    pub(super) async fn wait(&self) {
        sleep_until(self.begin_of_next(Instant::now())).await;
    }

    /// When the window begins in which a change may be made that is wanted `now`.
    fn begin_of_next(&self, now: Instant) -> Instant {
        let mut latest = self.latest.lock();
        let next = match *latest {
            Some(begin) if now < begin + LENGTH => return begin,
            Some(begin) => now.max(begin + PROXY_IDLE),
            None => now,
        };
        *latest = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_several_moves_begin_in_the_same_windows() {
        let (windows, begin) = (ChangeWindows::default(), Instant::now());
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        // When a move wants to change something, and when its window begins.
        for (wanted, window) in [(0, 0), (199, 0), (200, 2100), (1500, 2100), (2150, 2100), (2300, 4200), (9000, 9000)]
        {
            assert_eq!(windows.begin_of_next(at(wanted)), at(window), "{wanted}");
        }
    }
}
