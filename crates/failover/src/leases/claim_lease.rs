//! The Lease in which a claim of an address is stored.
//!
//! The name contains the address, so creating the Lease is a lock. A Lease in the server's own namespace needs no
//! permission outside of it, and `kubectl get leases` shows the addresses in flight.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use clusterip_core::annotations::{
    ADDRESS_ANNOTATION, LEASE_LABEL, SERVICE_ANNOTATION, in_service_annotation, service_of,
};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

use super::owner::Owner;

/// The value of the label for claims.
pub const CLAIM: &str = "claim";

/// The name of the Lease of an address: `ip-` and the address, [`dashed`].
pub fn name(address: IpAddr) -> String {
    format!("ip-{}", dashed(address))
}

/// The unabbreviated address, with dashes. The name of a Lease may contain it.
pub fn dashed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string().replace('.', "-"),
        IpAddr::V6(address) => address.segments().map(|group| format!("{group:04x}")).join("-"),
    }
}

/// The claim of one replica of an address that is in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaClaim {
    /// The claimed address.
    pub address: IpAddr,
    /// The Service that the address is for.
    pub owner: Owner,
    /// The identity of the replica that claims the address.
    pub holder: String,
    /// How long the claim is valid without a change.
    pub duration: Duration,
}

impl ReplicaClaim {
    /// The Lease of this claim, made at this time. The time is informative: no replica trusts the clock of another.
    pub fn lease(&self, namespace: &str, at: Timestamp) -> Lease {
        // Truncated to microseconds, as the API server returns it.
        let at = Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at);
        let (service_namespace, service) = self.owner.id();
        let annotations = [
            (ADDRESS_ANNOTATION.to_owned(), self.address.to_string()),
            (SERVICE_ANNOTATION.to_owned(), in_service_annotation(service_namespace, service)),
        ];
        Lease {
            metadata: ObjectMeta {
                namespace: Some(namespace.to_owned()),
                name: Some(name(self.address)),
                labels: Some(BTreeMap::from([(LEASE_LABEL.to_owned(), CLAIM.to_owned())])),
                annotations: Some(annotations.into()),
                ..ObjectMeta::default()
            },
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
        if lease.metadata.name.as_deref() != Some(name(address).as_str()) {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lease_name_contains_the_unabbreviated_address() {
        let rows = [
            ("172.21.0.5", "ip-172-21-0-5"),
            ("fd00::1", "ip-fd00-0000-0000-0000-0000-0000-0000-0001"),
            ("::", "ip-0000-0000-0000-0000-0000-0000-0000-0000"),
        ];
        for (address, expected) in rows {
            assert_eq!(name(address.parse().unwrap()), expected);
        }
    }

    #[test]
    fn claim_survives_writing_and_reading() {
        for (address, service) in [("172.21.0.5", "web"), ("fd00::1", "web"), ("172.21.0.6", "")] {
            let claim = ReplicaClaim {
                address: address.parse().unwrap(),
                owner: Owner::new("shop", service, "uid-1"),
                holder: "pod_serve_1".into(),
                duration: Duration::from_secs(70),
            };
            let mut lease = claim.lease("own", Timestamp::UNIX_EPOCH);
            lease.metadata.uid = Some("uid-1".into());
            assert_eq!(ReplicaClaim::of(&lease), Some(claim), "{address} {service}");
        }
    }

    #[test]
    fn lease_that_is_not_a_claim_is_ignored() {
        let claim = ReplicaClaim {
            address: IpAddr::from([172, 21, 0, 5]),
            owner: Owner::new("shop", "web", ""),
            holder: "pod_serve_1".into(),
            duration: Duration::from_secs(70),
        };
        let whole = claim.lease("own", Timestamp::UNIX_EPOCH);
        let annotate = |lease: &mut Lease, key: &str, value: &str| {
            lease.metadata.annotations.as_mut().unwrap().insert(key.into(), value.into());
        };
        type Break = Box<dyn Fn(&mut Lease)>;
        let rows: [(&str, Break); 6] = [
            ("no annotations", Box::new(|lease| lease.metadata.annotations = None)),
            ("another name", Box::new(|lease| lease.metadata.name = Some("ip-172-21-0-6".into()))),
            ("no address", Box::new(move |lease| annotate(lease, ADDRESS_ANNOTATION, "172.21.0.500"))),
            ("no service", Box::new(move |lease| annotate(lease, SERVICE_ANNOTATION, "web"))),
            ("no holder", Box::new(|lease| lease.spec.as_mut().unwrap().holder_identity = None)),
            ("no duration", Box::new(|lease| lease.spec.as_mut().unwrap().lease_duration_seconds = Some(-1))),
        ];
        for (name, spoil) in rows {
            let mut lease = whole.clone();
            spoil(&mut lease);
            assert_eq!(ReplicaClaim::of(&lease), None, "{name}");
        }
    }
}
