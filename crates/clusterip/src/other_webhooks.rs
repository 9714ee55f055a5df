//! Reports webhooks of other programs that also choose the addresses of Services, such as those of K2s.

use std::collections::BTreeSet;

use clusterip_cluster::watch::stores::Stores;

use crate::services::service_metrics::ServiceMetrics;

/// What is wrong with such a webhook.
pub const PROBLEM: &str = "the webhook of K2s also gives addresses to Services, and it deletes Services of Windows \
                           workloads and creates them again";

/// What to do about it.
pub const REMEDY: &str = "if `clusterip` gives addresses to the Services of this cluster, run \
                          `kubectl apply --server-side --force-conflicts -k deploy/k2s`: the API server then never \
                          calls that webhook";

/// Logs each webhook configuration of this kind once it is seen, and once the API server does not call its webhooks any
/// more. Sets the metric.
pub async fn report(stores: Stores, metrics: ServiceMetrics) {
    let mut names = stores.control_plane_services().other_webhooks();
    let mut told = BTreeSet::new();
    loop {
        let now = names.borrow_and_update().clone();
        for name in now.difference(&told) {
            tracing::warn!(webhook_configuration = name, remedy = REMEDY, "{PROBLEM}");
        }
        for name in told.difference(&now) {
            tracing::info!(webhook_configuration = name, "the webhook of K2s is not called any more");
        }
        metrics.other_webhooks(now.len());
        told = now;
        if names.changed().await.is_err() {
            return;
        }
    }
}
