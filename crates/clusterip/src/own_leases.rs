//! Lists the Leases of servers and agents.

use clusterip_cluster::list_pages::visit_pages;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;

/// The Leases with these labels, read page by page.
///
/// # Errors
/// The error of the API server.
pub async fn list(leases: &Api<Lease>, labels: &str) -> Result<Vec<Lease>, kube::Error> {
    let mut all = Vec::new();
    let list = |page| async move { leases.list(&page).await };
    visit_pages(ListParams::default().labels(labels), list, |lease| all.push(lease)).await?;
    Ok(all)
}
