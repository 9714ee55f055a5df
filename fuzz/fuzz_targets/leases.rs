//! Leases of agents and of addresses in flight are read, and all other Leases are skipped. No node is reported as the
//! holder of an address that it has not claimed.

#![no_main]

use std::net::IpAddr;

use clusterip_failover::claims::{HolderClaim, ReplicaClaim};
use clusterip_failover::holders::{HolderSnapshot, Observer};
use k8s_openapi::api::coordination::v1::Lease;
use libfuzzer_sys::fuzz_target;
use tokio::time::Instant;

fuzz_target!(|bytes: &[u8]| {
    let Ok(leases) = serde_json::from_slice::<Vec<Lease>>(bytes) else { return };
    let (now, mut observer, mut holdings) = (Instant::now(), Observer::default(), HolderSnapshot::new(None));
    for lease in &leases {
        let name = lease.metadata.name.as_deref();
        observer.apply(lease, now);
        holdings.apply(lease);
        if let Some(claim) = HolderClaim::of(lease) {
            assert_eq!(name, Some(HolderClaim::lease_name(claim.address).as_str()));
        }
        if let Some(claim) = ReplicaClaim::of(lease) {
            assert_eq!(name, Some(ReplicaClaim::lease_name(claim.address).as_str()));
        }
    }
    let claimed = |address: IpAddr, node: &str| {
        leases.iter().filter_map(HolderClaim::of).any(|claim| claim.address == address && claim.node() == Some(node))
    };
    for (address, node) in observer.holders(now) {
        assert!(claimed(address, &node), "{node} is reported as the holder of {address}");
    }
    for (address, holder) in holdings.all() {
        assert!(claimed(address, &holder.node), "{address} is reported as held by {}", holder.node);
    }
    for lease in &leases {
        observer.delete(lease, now);
    }
    observer.replace_all(&[], now);
    assert!(observer.holders(now).is_empty());
});
