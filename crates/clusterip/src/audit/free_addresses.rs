//! The addresses that an audit counts as free.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::RwLock;

use clusterip_cluster::lookups::snapshot::Snapshot;
use clusterip_cluster::lookups::stored_cluster::Addresses;
use clusterip_core::lookups::{LookupError, Reserve};

/// All addresses: an audit finds out where Services belong, even if their pools are full.
pub struct AllAddresses;

impl Addresses for AllAddresses {
    fn reserve(&self, _: IpAddr) -> Result<Reserve, LookupError> {
        Ok(Reserve::Reserved)
    }

    fn all_are_free(&self) -> bool {
        true
    }
}

/// The addresses that are neither in use nor in flight, and those of the Service itself.
pub struct FreeAddresses<'s> {
    /// The cluster.
    pub snapshot: &'s RwLock<Snapshot>,
    /// The Service's own addresses.
    pub own: &'s [IpAddr],
    /// The addresses in flight.
    pub in_flight: BTreeSet<IpAddr>,
}

impl Addresses for FreeAddresses<'_> {
    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError> {
        let is_used = || self.in_flight.contains(&address) || Snapshot::read(self.snapshot).has_ip_address(address);
        let is_free = self.own.contains(&address) || !is_used();
        Ok(if is_free { Reserve::Reserved } else { Reserve::Taken })
    }

    fn in_flight(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) {
        self.in_flight.iter().for_each(|address| visit("", "", *address));
    }
}
