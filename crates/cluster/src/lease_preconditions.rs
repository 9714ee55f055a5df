//! Limits the deletion of a Lease to one version of it.

use clusterip_failover::leases::Version;
use kube::api::Preconditions;

/// The preconditions with which the API server deletes this version of a Lease, and no other.
pub fn preconditions(version: &Version) -> Preconditions {
    Preconditions { uid: Some(version.uid.clone()), resource_version: Some(version.resource_version.clone()) }
}
