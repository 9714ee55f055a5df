//! Writes and deletes one version of a Lease, and no other.

use clusterip_failover::leases::Version;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Error, ResourceExt};

/// Replaces the version of a Lease that `lease` names; creates the Lease if it names none. The status of the error is 409
/// or 404 if the Lease has another version, or exists, or is gone.
pub async fn write(leases: &Api<Lease>, lease: &Lease) -> Result<Lease, Error> {
    let parameters = PostParams::default();
    match lease.metadata.resource_version {
        Some(_) => leases.replace(&lease.name_any(), &parameters, lease).await,
        None => leases.create(&parameters, lease).await,
    }
}

/// The preconditions with which the API server deletes this version of a Lease, and no other.
pub fn preconditions(version: &Version) -> Preconditions {
    Preconditions { uid: Some(version.uid.clone()), resource_version: Some(version.resource_version.clone()) }
}

/// Whether this Lease does not exist. The API server also answers 404 if the namespace does not exist.
pub fn is_missing(status: &kube::core::Status, name: &str) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == name)
}

pub async fn delete(leases: &Api<Lease>, name: &str, version: &Version) -> Result<(), Error> {
    let parameters = DeleteParams::default().preconditions(preconditions(version));
    leases.delete(name, &parameters).await.map(|_| ())
}
