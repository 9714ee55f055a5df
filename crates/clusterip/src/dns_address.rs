//! Warns if a pool may hand out the address that many installers give to the cluster's DNS.

use std::sync::Arc;

use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::watch::stores::Stores;
use tokio::sync::watch;

/// Logs the warning once the cluster is known, and again after each change of the settings that leads to another
/// warning.
pub async fn warn(stores: Stores, mut settings: watch::Receiver<Arc<LiveSettings>>) {
    stores.completed().await;
    let mut told = None;
    loop {
        let live = Arc::clone(&settings.borrow_and_update());
        let found = live.settings.unused_dns_address(|address| stores.read_snapshot().has_ip_address(address));
        if let Some(found) = found.as_ref().filter(|found| told.as_ref() != Some(*found)) {
            let warning = live.warning(found.into());
            tracing::warn!(%warning, "settings");
        }
        told = found;
        if settings.changed().await.is_err() {
            return;
        }
    }
}
