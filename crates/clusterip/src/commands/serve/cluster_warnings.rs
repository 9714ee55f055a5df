//! Warnings of the server about the cluster. Each task ends when nothing more can change, or at the stop.

use std::collections::BTreeSet;
use std::sync::Arc;

use clusterip_cluster::live_settings::{LiveSettings, list_if_defined};
use clusterip_cluster::watch::stores::Stores;
use kube::Client;
use tokio::sync::watch;

use super::LOG_TARGET;
use crate::audit::service_findings::{OTHER_WEBHOOK_PROBLEM, OTHER_WEBHOOK_REMEDY};
use crate::services::service_metrics::ServiceMetrics;
use crate::text::several;

/// Logs a warning if a pool may hand out the address that many installers give to the cluster's DNS: once the cluster
/// is known, and again after each change of the settings that leads to another warning.
pub(super) async fn dns_address(stores: Stores, mut settings: watch::Receiver<Arc<LiveSettings>>) {
    stores.completed().await;
    let mut told = None;
    loop {
        let live = Arc::clone(&settings.borrow_and_update());
        let found = live.settings.unused_dns_address(|address| stores.read_snapshot().has_ip_address(address));
        if let Some(found) = found.as_ref().filter(|found| told.as_ref() != Some(*found)) {
            let warning = live.warning(found.into());
            tracing::warn!(target: LOG_TARGET, %warning, "settings");
        }
        told = found;
        if settings.changed().await.is_err() {
            return;
        }
    }
}

/// Logs a warning if the cluster has pool objects, although the server reads its settings from a file.
pub(super) async fn unused_pools(client: Client) {
    // Without the permission to list them, the cluster may have any.
    let count = list_if_defined(&client).await.map_or(0, |objects| objects.len());
    if count > 0 {
        tracing::warn!(
            target: LOG_TARGET,
            "the cluster has {}, which this server does not follow: omit --settings to use them",
            several(count, "pool object")
        );
    }
}

/// Logs each configuration of a webhook that also chooses addresses of Services: once it is seen, and once the API
/// server does not call its webhooks any more. Sets the metric.
pub(super) async fn other_webhooks(stores: Stores, metrics: ServiceMetrics) {
    let mut names = stores.control_plane_services().other_webhooks();
    let mut told = BTreeSet::new();
    loop {
        let now = names.borrow_and_update().clone();
        for name in now.difference(&told) {
            tracing::warn!(
                target: LOG_TARGET,
                webhook_configuration = name,
                remedy = OTHER_WEBHOOK_REMEDY,
                "{OTHER_WEBHOOK_PROBLEM}"
            );
        }
        for name in told.difference(&now) {
            tracing::info!(target: LOG_TARGET, webhook_configuration = name, "the webhook of K2s is not called any more");
        }
        metrics.other_webhooks(now.len());
        told = now;
        if names.changed().await.is_err() {
            return;
        }
    }
}
