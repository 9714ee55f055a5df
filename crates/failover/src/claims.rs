//! Claims: the Leases that keep an address for one replica ([`ReplicaClaim`]), or that say which agent holds an
//! external address ([`HolderClaim`]).
//!
//! The name of a claim contains the address, so creating the Lease is a lock. `kubectl get leases` shows the claims.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_core::annotations::{ADDRESS_ANNOTATION, SERVICE_ANNOTATION, in_service_annotation, service_of};
use clusterip_core::service_key::ServiceKey;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

use crate::leases::{self, Identity, Version, metadata};

/// The Service of a reserved address. Without a name, only the UID of its request distinguishes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The name is empty if it is not generated yet.
    pub service: ServiceKey,
    uid: String,
}

impl Owner {
    pub fn new(namespace: &str, name: &str, uid: &str) -> Self {
        let uid = if name.is_empty() { uid } else { "" };
        Self { service: ServiceKey::new(namespace, name), uid: uid.to_owned() }
    }
}

/// The value of the label for claims of replicas.
pub const CLAIM: &str = "claim";

/// The unabbreviated address, with dashes. The name of a Lease may contain it.
fn dashed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string().replace('.', "-"),
        IpAddr::V6(address) => address.segments().map(|group| format!("{group:04x}")).join("-"),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaClaim {
    pub address: IpAddr,
    pub owner: Owner,
    pub holder: String,
    /// How long the claim is valid without a change.
    pub duration: Duration,
}

impl ReplicaClaim {
    pub fn lease_name(address: IpAddr) -> String {
        format!("ip-{}", dashed(address))
    }

    /// The Lease of this claim, made at this time. The time is informative: no replica trusts the clock of another.
    pub fn lease(&self, namespace: &str, at: Timestamp) -> Lease {
        // Truncated to microseconds, as the API server returns it.
        let at = Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at);
        let ServiceKey { namespace: of_service, name } = &self.owner.service;
        let annotations = [
            (ADDRESS_ANNOTATION, self.address.to_string()),
            (SERVICE_ANNOTATION, in_service_annotation(of_service, name)),
        ];
        let metadata = metadata(Self::lease_name(self.address), CLAIM, annotations);
        Lease {
            metadata: ObjectMeta { namespace: Some(namespace.to_owned()), ..metadata },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.clone()),
                lease_duration_seconds: Some(i32::try_from(self.duration.as_secs()).unwrap_or(i32::MAX)),
                acquire_time: Some(MicroTime(at)),
                renew_time: Some(MicroTime(at)),
                ..LeaseSpec::default()
            }),
        }
    }

    /// The claim of a Lease; `None` if the Lease is not a claim that this program can have written.
    pub fn of(lease: &Lease) -> Option<Self> {
        let annotations = lease.metadata.annotations.as_ref()?;
        let address = annotations.get(ADDRESS_ANNOTATION)?.parse().ok()?;
        if lease.metadata.name.as_deref() != Some(Self::lease_name(address).as_str()) {
            return None;
        }
        let (namespace, service) = service_of(annotations.get(SERVICE_ANNOTATION)?)?;
        let spec = lease.spec.as_ref()?;
        let uid = lease.metadata.uid.as_deref().unwrap_or_default();
        Some(Self {
            address,
            owner: Owner::new(namespace, service, uid),
            holder: spec.holder_identity.clone()?,
            duration: Duration::from_secs(u64::try_from(spec.lease_duration_seconds?).ok()?),
        })
    }
}

/// The value of the label for claims of agents.
pub const EXTERNAL: &str = "external";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderClaim {
    pub address: IpAddr,
    /// The agent term that holds the address while its heartbeat names it; `None` if it was given back.
    pub holder: Option<Identity>,
}

impl HolderClaim {
    pub fn lease_name(address: IpAddr) -> String {
        format!("clusterip-external-{}", dashed(address))
    }

    /// Reads a claim; `None` if the Lease is not a claim or can't have been written by this program.
    pub fn of(lease: &Lease) -> Option<Self> {
        let address = lease.metadata.annotations.as_ref()?.get(ADDRESS_ANNOTATION)?.parse().ok()?;
        if lease.metadata.name.as_deref() != Some(Self::lease_name(address).as_str()) {
            return None;
        }
        let holder = lease.spec.as_ref().and_then(leases::holder);
        Some(Self { address, holder: holder.map(Identity::of) })
    }

    pub fn node(&self) -> Option<&str> {
        self.holder.as_ref().and_then(Identity::agent_node)
    }
}

/// The claim of `holder`, or of no agent, which replaces the Lease `before`. It is never renewed.
pub(crate) fn holder_lease(
    address: IpAddr,
    holder: Option<&Identity>,
    before: Option<&Lease>,
    clock: Timestamp,
) -> Lease {
    let transitions = before.map(|lease| lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0));
    let mut lease = Lease {
        metadata: metadata(HolderClaim::lease_name(address), EXTERNAL, [(ADDRESS_ANNOTATION, address.to_string())]),
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.map(ToString::to_string).unwrap_or_default()),
            acquire_time: Some(MicroTime(clock)),
            lease_transitions: Some(transitions.map_or(0, |transitions| transitions.saturating_add(1))),
            ..LeaseSpec::default()
        }),
    };
    if let Some(before) = before {
        Version::of(before).replace_with(&mut lease);
    }
    lease
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
