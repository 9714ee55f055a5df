//! Which Services have each address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clusterip_core::address::{AddressSet, Span};
use clusterip_core::service_key::ServiceKey;

/// How many addresses a span must have to be known without a look-up. Looking fewer up is faster.
const MIN_LENGTH: u128 = 8;
/// How many spans are known without a look-up. With `order: lowest`, most addresses lie in one span for each pool.
const MAX_SPANS: usize = 512;

/// The addresses of all Services.
#[derive(Default)]
pub(super) struct AddressIndex {
    owners: BTreeSet<(IpAddr, ServiceKey)>,
    used: AddressSet,
}

impl AddressIndex {
    pub(super) fn add(&mut self, service: &ServiceKey, addresses: &[IpAddr]) {
        for address in addresses {
            self.owners.insert((*address, service.clone()));
            self.used.insert(*address);
        }
    }

    pub(super) fn forget(&mut self, service: &ServiceKey, addresses: &[IpAddr]) {
        for address in addresses {
            self.owners.remove(&(*address, service.clone()));
            if !self.has(*address) {
                self.used.remove(*address);
            }
        }
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.owners(address).next().is_some()
    }

    pub(super) fn owners(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        let owners = self.owners.range((address, ServiceKey::default())..);
        owners.take_while(move |(other, _)| *other == address).map(|(_, service)| service)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let mut last = None;
        let addresses = self.iter().map(|(address, _)| address);
        addresses.filter(move |address| last.replace(*address) != Some(*address))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpAddr, &ServiceKey)> {
        self.owners.iter().map(|(address, service)| (*address, service))
    }

    /// The longer spans of addresses that Services other than `service` have. `own` are the addresses of `service`.
    pub(super) fn used_by_others(&self, service: &ServiceKey, own: &[IpAddr]) -> Vec<Span> {
        let is_only_own = |address: &&IpAddr| {
            let mut owners = self.owners(**address).peekable();
            owners.peek().is_some() && owners.all(|owner| owner == service)
        };
        let own: Vec<&IpAddr> = own.iter().filter(is_only_own).collect();
        let long = |used: &AddressSet| {
            used.spans().filter(|span| span.count() >= MIN_LENGTH).take(MAX_SPANS).collect::<Vec<_>>()
        };
        if own.is_empty() {
            return long(&self.used);
        }
        let mut others = self.used.clone();
        own.into_iter().for_each(|address| others.remove(*address));
        long(&others)
    }
}
