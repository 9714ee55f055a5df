//! The claim: the Lease that says which agent holds an address.
//!
//! A claim is written when the holder changes, and is never renewed: it is valid as long as the term that it names.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::leases::claim_lease::dashed;
use crate::leases::identity::{Identity, Role};
use crate::leases::version::Version;
use clusterip_core::annotations::{ADDRESS_ANNOTATION, LEASE_LABEL};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;

/// Value of the label of claims.
pub const EXTERNAL: &str = "external";

/// The name of the claim of an address.
pub fn name(address: IpAddr) -> String {
    format!("clusterip-external-{}", dashed(address))
}

/// The content of the claim that names the holder of an external address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderClaim {
    /// The claimed address.
    pub address: IpAddr,
    /// The agent term that holds the address as long as its heartbeat names the same identity; `None` if the
    /// address was given back.
    pub holder: Option<Identity>,
}

impl HolderClaim {
    /// Reads a claim; `None` if the Lease is not a claim or can't have been written by this program.
    pub fn of(lease: &Lease) -> Option<Self> {
        let address = lease.metadata.annotations.as_ref()?.get(ADDRESS_ANNOTATION)?.parse().ok()?;
        if lease.metadata.name.as_deref() != Some(name(address).as_str()) {
            return None;
        }
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        let holder = (!holder.is_empty()).then(|| Identity::of(holder));
        Some(Self { address, holder })
    }

    /// The node that holds the address according to this claim.
    pub fn node(&self) -> Option<&str> {
        self.holder.as_ref().and_then(node_of)
    }
}

/// The node of an agent; `None` if the identity is not that of an agent.
pub(super) fn node_of(identity: &Identity) -> Option<&str> {
    if identity.role() == Some(Role::Agent) { identity.host() } else { None }
}

/// The claim that gives the address to `holder`, or to no agent, and replaces the Lease `before`.
pub(super) fn lease(address: IpAddr, holder: Option<&Identity>, before: Option<&Lease>, clock: Timestamp) -> Lease {
    let transitions = before.map(|lease| lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0));
    let mut lease = Lease {
        metadata: ObjectMeta {
            name: Some(name(address)),
            labels: Some(BTreeMap::from([(LEASE_LABEL.to_owned(), EXTERNAL.to_owned())])),
            annotations: Some(BTreeMap::from([(ADDRESS_ANNOTATION.to_owned(), address.to_string())])),
            ..ObjectMeta::default()
        },
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
mod tests {
    use super::*;

    #[test]
    fn claim_is_read_as_it_was_written() {
        let me = Identity::with("node-1", Role::Agent, 1);
        for (address, expected) in [
            ("10.0.9.10", "clusterip-external-10-0-9-10"),
            ("fd00::1", "clusterip-external-fd00-0000-0000-0000-0000-0000-0000-0001"),
        ] {
            let address = address.parse().unwrap();
            for holder in [None, Some(&me)] {
                let lease = lease(address, holder, None, Timestamp::UNIX_EPOCH);
                assert_eq!(lease.metadata.name.as_deref(), Some(expected));
                let claim = HolderClaim::of(&lease);
                assert_eq!(claim, Some(HolderClaim { address, holder: holder.cloned() }));
                assert_eq!(claim.unwrap().node(), holder.map(|_| "node-1"));
            }
        }
    }

    #[test]
    fn leases_that_are_not_claims_are_ignored() {
        let whole = || lease(IpAddr::from([10, 0, 9, 10]), None, None, Timestamp::UNIX_EPOCH);
        let mut named = whole();
        named.metadata.name = Some("clusterip-external-10-0-9-11".into());
        let mut bare = whole();
        bare.metadata.annotations = None;
        let mut wrong = whole();
        wrong.metadata.annotations.as_mut().unwrap().insert(ADDRESS_ANNOTATION.into(), "10.0.9".into());
        for (name, lease) in [("another name", named), ("no annotations", bare), ("no address", wrong)] {
            assert_eq!(HolderClaim::of(&lease), None, "{name}");
        }
    }

    #[test]
    fn claim_that_changes_hands_is_the_next_version_of_the_same_lease() {
        let (address, me) = (IpAddr::from([10, 0, 9, 10]), Identity::with("node-1", Role::Agent, 1));
        let mut before = lease(address, Some(&me), None, Timestamp::UNIX_EPOCH);
        before.metadata.uid = Some("uid".into());
        before.metadata.resource_version = Some("7".into());
        let after = lease(address, None, Some(&before), Timestamp::UNIX_EPOCH);
        let found = (after.metadata.uid.as_deref(), after.metadata.resource_version.as_deref());
        assert_eq!(found, (Some("uid"), Some("7")));
        assert_eq!(after.spec.unwrap().lease_transitions, Some(1));
    }
}
