//! Picks a free address of a pool.

use std::net::IpAddr;

use crate::address::{Candidates, Order, Span, number};
use crate::lookups::{Cluster, LookupError, Reserve};
use crate::service_key::ServiceKey;

/// After this many addresses were found taken, all Services are listed once. In a cluster of some thousand Services a
/// list costs as much as this many look-ups; in a pool that is half full, one pick in 65,000 gets this far.
const LOOKUPS_BEFORE_LIST: u32 = 16;

/// Picks free addresses, and keeps what it learned for the next pick.
pub struct Picker<'a> {
    cluster: &'a dyn Cluster,
    order: Order,
    /// The key that the order is hashed from.
    key: &'a str,
    /// The Service that gets the addresses. Its own addresses do not count as used.
    subject: (&'a str, &'a str),
    taken_seen: u32,
    has_ip_address_api: bool,
}

impl<'a> Picker<'a> {
    /// A picker for the Service with this namespace and name. `key` is the key for [`Order::walk`].
    pub fn new(cluster: &'a dyn Cluster, order: Order, key: &'a str, subject: (&'a str, &'a str)) -> Self {
        Self { cluster, order, key, subject, taken_seen: 0, has_ip_address_api: true }
    }

    /// A free address of `candidates`, which are of one family; `None` if all of them are taken.
    ///
    /// If the cluster has `IPAddress` objects, the last check is always a look-up of the address itself, because a list
    /// may be older than the last Service. Therefore `spread` starts without a list, and its cost does not grow with
    /// the cluster. `lowest` starts without a list if the host sent the addresses in use with the request.
    pub fn pick(&mut self, candidates: &Candidates) -> Result<Option<IpAddr>, LookupError> {
        let mut listed: Option<Used> = None;
        for band in &candidates.bands {
            let mut walk = self.order.walk(self.key, band.count());
            while let Some(position) = walk.next() {
                let Some(address) = band.address(position) else { continue };
                if let Some(used) = self.known_used().iter().find(|used| used.contains(address)) {
                    let rest = number(used.last()) - number(address);
                    walk.skip_ascending(rest.min(band.positions_without_gap(position)));
                    continue;
                }
                if listed.is_none() && self.must_list() {
                    listed = Some(self.used(candidates)?);
                }
                if listed.as_ref().is_some_and(|listed| listed.contains(address)) {
                    continue;
                }
                if self.has_ip_address_api {
                    match self.cluster.reserve(address)? {
                        Reserve::Reserved => return Ok(Some(address)),
                        Reserve::Taken => {
                            self.taken_seen += 1;
                            continue;
                        }
                        Reserve::NoSuchApi => self.has_ip_address_api = false,
                    }
                }
                // Without `IPAddress` objects, only the list of Services tells which addresses are used.
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

    /// The other Service that has `address`, the first one by namespace and name; `None` if no Service has it.
    pub fn holder(&self, address: IpAddr) -> Result<Option<ServiceKey>, LookupError> {
        let mut first: Option<ServiceKey> = None;
        self.cluster.service_addresses(&mut |namespace, name, held| {
            if held == address && (namespace, name) != self.subject {
                let holder = ServiceKey::new(namespace, name);
                if first.as_ref().is_none_or(|first| holder < *first) {
                    first = Some(holder);
                }
            }
        })?;
        Ok(first)
    }

    /// The addresses that need no look-up, because the host says that they are used. Only an ascending walk can skip
    /// them.
    fn known_used(&self) -> &'a [Span] {
        let used = if self.order == Order::Lowest { self.cluster.known_used() } else { None };
        used.unwrap_or_default()
    }

    fn must_list(&self) -> bool {
        let starts_with_list = self.order == Order::Lowest && self.cluster.known_used().is_none();
        starts_with_list || !self.has_ip_address_api || self.taken_seen >= LOOKUPS_BEFORE_LIST
    }

    /// The candidates that other Services have.
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

/// Addresses of one family as sorted numbers. With thousands of them, sorting once is cheaper than a sorted set.
struct Used(Vec<u128>);

impl Used {
    fn contains(&self, address: IpAddr) -> bool {
        self.0.binary_search(&number(address)).is_ok()
    }
}
