//! When seamless moves that run at the same time change Services.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// The time between the beginnings of two windows: kube-proxy programs the first change of a window at once, those after
/// it when its `minSyncPeriod` of a second has passed, and after another second it programs the next change at once.
const BETWEEN: Duration = Duration::from_millis(2100);
/// How long after its beginning a window is open for further changes.
const OPEN: Duration = Duration::from_millis(200);

/// The windows in which moves may begin to change Services. A change at any other time would let kube-proxy program one
/// half of another move's swap alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    /// When the latest window has begun or will begin.
    latest: Arc<Mutex<Option<Instant>>>,
}

impl Windows {
    /// Waits until a window is open.
    pub(super) async fn open(&self) {
        sleep_until(self.next(Instant::now())).await;
    }

    fn next(&self, now: Instant) -> Instant {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let next = match *latest {
            Some(begin) if now < begin + OPEN => return begin,
            Some(begin) => now.max(begin + BETWEEN),
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
        let (windows, begin) = (Windows::default(), Instant::now());
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        // When a move wants to begin a change, and the beginning of its window.
        for (wanted, window) in [(0, 0), (199, 0), (200, 2100), (1500, 2100), (2150, 2100), (2300, 4200), (9000, 9000)]
        {
            assert_eq!(windows.next(at(wanted)), at(window), "{wanted}");
        }
    }
}
