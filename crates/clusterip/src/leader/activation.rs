//! Waits until a task that only the leader carries out has something to do.

use std::sync::Arc;

use clusterip_cluster::live_settings::LiveSettings;
use tokio::sync::watch;

use super::Leadership;

/// Returns `true` once this process leads and `has_work` is true of the settings in force. Returns `false` if that
/// can't happen any more, because the settings or the leadership are not published any more.
pub async fn wait_until_active(
    settings: &mut watch::Receiver<Arc<LiveSettings>>,
    leadership: &mut watch::Receiver<Leadership>,
    has_work: fn(&LiveSettings) -> bool,
) -> bool {
    loop {
        if has_work(&settings.borrow_and_update()) && leadership.borrow_and_update().leads() {
            return true;
        }
        let changed = tokio::select! {
            changed = settings.changed() => changed,
            changed = leadership.changed() => changed,
        };
        if changed.is_err() {
            return false;
        }
    }
}
