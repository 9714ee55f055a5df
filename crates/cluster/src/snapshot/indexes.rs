//! Which Services have each address.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use clusterip_core::address::{AddressSet, Span};
use clusterip_core::service_key::ServiceKey;

/// The addresses of all Services. The addresses of a Service share its key, because a tenant may write any number of
/// external addresses.
#[derive(Default)]
pub(super) struct AddressIndex(BTreeSet<(IpAddr, Arc<ServiceKey>)>);

impl AddressIndex {
    pub(super) fn add(&mut self, service: &Arc<ServiceKey>, addresses: &[IpAddr]) {
        self.0.extend(addresses.iter().map(|address| (*address, Arc::clone(service))));
    }

    pub(super) fn forget(&mut self, service: &Arc<ServiceKey>, addresses: &[IpAddr]) {
        for address in addresses {
            self.0.remove(&(*address, Arc::clone(service)));
        }
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.owners(address).next().is_some()
    }

    pub(super) fn owners(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        static FIRST: LazyLock<Arc<ServiceKey>> = LazyLock::new(Arc::default);
        let owners = self.0.range((address, Arc::clone(&FIRST))..);
        owners.take_while(move |(other, _)| *other == address).map(|(_, service)| &**service)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let mut last = None;
        let addresses = self.iter().map(|(address, _)| address);
        addresses.filter(move |address| last.replace(*address) != Some(*address))
    }

    pub(super) fn within(&self, range: &Span) -> impl Iterator<Item = IpAddr> {
        let last = range.last();
        let all = self.0.range((range.first(), Arc::default())..).map(|(address, _)| *address);
        all.take_while(move |address| *address <= last)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &ServiceKey)> {
        self.0.iter().map(|(address, service)| (*address, &**service))
    }

    /// The addresses of `ranges` that no Service other than `service` has: the first `most` of each range, and whether
    /// these are all. `own` are the addresses of `service`, and `used` those of all Services.
    pub(super) fn free(
        &self,
        service: &ServiceKey,
        own: &[IpAddr],
        used: &AddressSet,
        ranges: &[Span],
        most: usize,
    ) -> (Vec<IpAddr>, bool) {
        let is_only_own = |address: &IpAddr| self.owners(*address).all(|owner| owner == service);
        let mut free: Vec<IpAddr> = own.iter().copied().filter(is_only_own).collect();
        free.retain(|address| ranges.iter().any(|range| range.contains(*address)));
        let mut are_all = true;
        for range in ranges {
            let address = |number| range.family().address(number);
            let mut gaps = used.gaps(range).flatten().map(address);
            free.extend(gaps.by_ref().take(most));
            are_all &= gaps.next().is_none();
        }
        (free, are_all)
    }
}
