//! The addresses of Services, and which Services have each of them.

use std::collections::{HashMap, hash_map};
use std::net::IpAddr;

use clusterip_core::address::{AddressSet, Span};
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

use super::addresses;
use super::small_set::SmallSet;

/// How many addresses a span must have to be known without a look-up. Looking fewer up is faster.
const MIN_LENGTH: u128 = 8;
/// How many spans are known without a look-up. With `order: lowest`, most addresses lie in one span for each pool.
const MAX_SPANS: usize = 512;

/// The addresses of all Services.
#[derive(Default)]
pub(super) struct AddressIndex {
    owners: HashMap<IpAddr, SmallSet<ServiceKey>>,
    used: AddressSet,
}

impl AddressIndex {
    /// Adds the addresses of a Service.
    pub(super) fn add(&mut self, service: &Value) {
        let key = ServiceKey::of(service);
        for address in addresses(service) {
            self.owners.entry(address).or_default().insert(key.clone());
            self.used.insert(address);
        }
    }

    /// Removes the addresses of a Service.
    pub(super) fn forget(&mut self, service: &Value) {
        let key = ServiceKey::of(service);
        for address in addresses(service) {
            if let hash_map::Entry::Occupied(mut owners) = self.owners.entry(address) {
                owners.get_mut().remove(&key);
                if owners.get().is_empty() {
                    owners.remove();
                    self.used.remove(address);
                }
            }
        }
    }

    /// The Services that have this address; `None` if there are none.
    pub(super) fn owners(&self, address: IpAddr) -> Option<&SmallSet<ServiceKey>> {
        self.owners.get(&address)
    }

    /// Every address that a Service has, in any order.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.owners.keys().copied()
    }

    /// Calls `visit` with the namespace, name and address of each Service and each of its addresses, in any order.
    pub(super) fn each(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) {
        for (address, owners) in &self.owners {
            owners.iter().for_each(|ServiceKey { namespace, name }| visit(namespace, name, *address));
        }
    }

    /// The longer spans of addresses that Services other than `service` have. `own` are the addresses of `service`.
    pub(super) fn used_by_others(&self, service: &ServiceKey, own: &[IpAddr]) -> Vec<Span> {
        let is_only_own = |address: &&IpAddr| {
            self.owners(**address).is_some_and(|owners| owners.iter().all(|owner| owner == service))
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
