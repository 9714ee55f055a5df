//! Which address of a pool is free?

use std::net::IpAddr;

use crate::address::{Candidates, Order, number};
use crate::cluster::{Cluster, IpAddressLookup, LookupError};

/// How many single addresses are asked for before all Services are listed once. A list costs as much as
/// this many look-ups at some thousand Services; in a pool half full one pick in 65,000 gets that far.
const LOOKUPS_BEFORE_LIST: u32 = 16;

/// Picks free addresses, and remembers between two picks what it learned.
pub struct Picker<'a> {
    cluster: &'a dyn Cluster,
    order: Order,
    /// What the order is hashed from.
    key: &'a str,
    /// The Service that the addresses are for: what it has itself does not count as used.
    subject: (&'a str, &'a str),
    taken_seen: u32,
    has_ip_address_api: bool,
}

impl<'a> Picker<'a> {
    /// A picker for the Service of this namespace and name, with its key for [`Order::walk`].
    pub fn new(cluster: &'a dyn Cluster, order: Order, key: &'a str, subject: (&'a str, &'a str)) -> Self {
        Self { cluster, order, key, subject, taken_seen: 0, has_ip_address_api: true }
    }

    /// A free address of `candidates`, which are of one family, or none where each of them is taken.
    ///
    /// Its last word is always a look-up of the address itself, where the cluster has `IPAddress`
    /// objects: a list may be older than the last Service. `spread` therefore begins without a list, so
    /// that its cost does not grow with the cluster.
    ///
    /// # Errors
    /// [`LookupError`] of the first look-up that fails.
    pub fn pick(&mut self, candidates: &Candidates) -> Result<Option<IpAddr>, LookupError> {
        let mut listed: Option<Used> = None;
        for band in &candidates.bands {
            for position in self.order.walk(self.key, band.count()) {
                let Some(address) = band.address(position) else { continue };
                if listed.is_none() && self.must_list() {
                    listed = Some(self.used(candidates)?);
                }
                if listed.as_ref().is_some_and(|listed| listed.contains(address)) {
                    continue;
                }
                if self.has_ip_address_api {
                    match self.cluster.ip_address(address)? {
                        IpAddressLookup::Free => return Ok(Some(address)),
                        IpAddressLookup::Taken => {
                            self.taken_seen += 1;
                            continue;
                        }
                        IpAddressLookup::NoSuchApi => self.has_ip_address_api = false,
                    }
                }
                // Services alone tell.
                let used = match listed.take() {
                    Some(used) => used,
                    None => self.used(candidates)?,
                };
                let free = !used.contains(address);
                listed = Some(used);
                if free {
                    return Ok(Some(address));
                }
            }
        }
        Ok(None)
    }

    fn must_list(&self) -> bool {
        self.order == Order::Lowest || !self.has_ip_address_api || self.taken_seen >= LOOKUPS_BEFORE_LIST
    }

    /// The candidates that a Service has.
    fn used(&self, candidates: &Candidates) -> Result<Used, LookupError> {
        let mut used = Vec::new();
        self.cluster.service_addresses(&mut |namespace, name, address| {
            if candidates.contains(address) && (namespace, name) != self.subject {
                used.push(number(address));
            }
        })?;
        used.sort_unstable();
        Ok(Used(used))
    }
}

/// Addresses of one family by number, ascending. With thousands of them this is cheaper than a set that
/// is in order all the time.
struct Used(Vec<u128>);

impl Used {
    fn contains(&self, address: IpAddr) -> bool {
        self.0.binary_search(&number(address)).is_ok()
    }
}
