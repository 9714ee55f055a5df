use std::time::Duration;

use super::retries::pause_after;

#[test]
fn failed_moves_are_retried_at_growing_intervals() {
    let rows = [(1, 2), (2, 4), (3, 8), (5, 32), (6, 60), (33, 60), (u32::MAX, 60)];
    for (failures, seconds) in rows {
        assert_eq!(pause_after(failures), Duration::from_secs(seconds), "after {failures} failures");
    }
}
