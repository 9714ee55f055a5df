//! Lists the Leases of servers and agents.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::ListParams;

/// How many Leases are listed at a time.
const PAGE: u32 = 500;

/// The Leases with these labels, read page by page.
///
/// # Errors
/// The error of the API server.
pub async fn list(leases: &Api<Lease>, labels: &str) -> Result<Vec<Lease>, kube::Error> {
    let mut page = ListParams::default().labels(labels).limit(PAGE);
    let mut all = Vec::new();
    loop {
        let found = leases.list(&page).await?;
        all.extend(found.items);
        match found.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(all),
        }
    }
}
