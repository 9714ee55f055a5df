//! The hash of the settings that were carried out last, kept in an annotation of the leader's Lease.
//!
//! A restart may bring other settings. Without this hash, such a restart could not be told from one with the same
//! settings.

use clusterip_core::annotations::SETTINGS_HASH_ANNOTATION;
use clusterip_failover::leases::LEASE;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::PostParams;
use kube::{Api, Client};

/// How many times a write is tried if it conflicts with another.
const ATTEMPTS: usize = 5;

/// Reads the hash of the settings that were carried out last; `None` if there is no Lease, or no hash on it.
pub async fn read(client: &Client, namespace: &str) -> Result<Option<String>, kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = leases.get_opt(LEASE).await?;
    Ok(lease.and_then(|lease| lease.metadata.annotations?.remove(SETTINGS_HASH_ANNOTATION)))
}

/// Records that the settings with this hash are carried out. Writes nothing if the Lease has this hash already.
pub async fn write(client: &Client, namespace: &str, hash: &str) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let mut attempt = 1;
    loop {
        let mut lease = leases.get(LEASE).await?;
        let annotations = lease.metadata.annotations.get_or_insert_default();
        if annotations.insert(SETTINGS_HASH_ANNOTATION.to_owned(), hash.to_owned()).as_deref() == Some(hash) {
            return Ok(());
        }
        match leases.replace(LEASE, &PostParams::default(), &lease).await {
            Ok(_) => return Ok(()),
            // Conflicts are expected: the leader renews this Lease every 2 seconds.
            Err(kube::Error::Api(status)) if status.code == 409 && attempt < ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}
