//! Which settings were carried out last: an annotation of the Lease that the leader keeps.
//!
//! A restart may bring other settings. Without this note it could not be told from one that does not.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};

use super::leader::LEASE;

/// The annotation that holds the hash of the settings.
pub const SETTINGS_ANNOTATION: &str = "clusterip-policy/settings-hash";
/// How often a write is tried that meets another.
const ATTEMPTS: usize = 5;

/// The hash of the settings that were carried out last, if any were.
///
/// # Errors
/// Those of the API server.
pub async fn read(client: &Client, namespace: &str) -> Result<Option<String>, kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = leases.get_opt(LEASE).await?;
    Ok(lease.and_then(|lease| lease.metadata.annotations?.remove(SETTINGS_ANNOTATION)))
}

/// Notes that these settings are carried out.
///
/// # Errors
/// Those of the API server.
pub async fn write(client: &Client, namespace: &str, hash: &str) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let mut attempt = 1;
    loop {
        let mut lease = leases.get(LEASE).await?;
        let annotations = lease.metadata.annotations.get_or_insert_default();
        if annotations.insert(SETTINGS_ANNOTATION.to_owned(), hash.to_owned()).as_deref() == Some(hash) {
            return Ok(());
        }
        match leases.replace(LEASE, &PostParams::default(), &lease).await {
            Ok(_) => return Ok(()),
            // The leader renews it every other second.
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}
