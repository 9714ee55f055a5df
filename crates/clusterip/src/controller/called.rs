//! When a part that is the leader's alone has something to do.

use std::sync::Arc;

use tokio::sync::watch;

use super::leader::Leadership;
use crate::live_settings::LiveSettings;

/// Comes back when this process leads and the settings in force are `about` what the caller does. `false`: that
/// will never be.
pub async fn called(
    settings: &mut watch::Receiver<Arc<LiveSettings>>,
    leadership: &mut watch::Receiver<Leadership>,
    about: fn(&LiveSettings) -> bool,
) -> bool {
    loop {
        if about(&settings.borrow_and_update()) && leadership.borrow_and_update().leads() {
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
