//! The assignments: the external addresses to hold, and the order in which Nodes should take a free one.
//!
//! The order of a single address is that of rendezvous hashing: the weight of a node is a hash of the address and the
//! node. Agents that know the same nodes compute the same order, and a node that leaves does not change the order of
//! the others. The hash is SipHash-2-4 with a key of zeros, over the number of octets of the address, the octets, and
//! the node's name. Agents of several releases run side by side during an upgrade, so the hash must never change.
//!
//! Rendezvous hashing alone is as uneven as chance: of 200 addresses on three nodes, one node may get 50 and another
//! 80. Therefore no node is the first choice for more than its share, including the addresses that it holds. Shares are
//! counted for each set of Nodes that may hold the same addresses. The result does not depend on how many addresses the
//! preferred nodes have taken already: the remaining ones keep their first choice, because a node reaches its share
//! only after it has taken all addresses for which it is the first choice.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_core::service_key::ServiceKey;
use siphasher::sip::SipHasher24;

pub type Assignments = BTreeMap<IpAddr, Assignment>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    pub service: ServiceKey,
    /// The open ports of the address, in ascending order.
    pub ports: Arc<[Port]>,
    /// Shared by all addresses of a pool: there may be thousands, and hundreds of nodes.
    pub nodes: Arc<BTreeSet<String>>,
}

/// A port of a protocol. A tenant may have thousands of them, so they are kept in four bytes each.
pub type Port = (Protocol, u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

#[cfg(test)]
thread_local! {
    /// How many nodes this thread has weighed.
    pub(crate) static WEIGHED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn weight(key: &[u8], node: &str) -> u64 {
    #[cfg(test)]
    WEIGHED.set(WEIGHED.get() + 1);
    let mut hasher = SipHasher24::new();
    hasher.write(&(key.len() as u64).to_le_bytes());
    hasher.write(key);
    hasher.write(node.as_bytes());
    hasher.finish()
}

pub fn order<'a>(address: IpAddr, nodes: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut weighed: Vec<(u64, &str)> = nodes.into_iter().map(|node| (weight(&octets, node), node)).collect();
    // The heaviest node comes first; equal weights are ordered by name.
    weighed.sort_unstable_by(|(one, a), (other, b)| other.cmp(one).then_with(|| a.cmp(b)));
    weighed.into_iter().map(|(_, node)| node).collect()
}

/// Whether the turn of `other` to write or remove the Lease with this name comes before that of `node`.
pub(crate) fn is_before(name: &str, other: &str, node: &str) -> bool {
    let weight = |node| weight(name.as_bytes(), node);
    (weight(other), node) > (weight(node), other)
}

/// The nodes of `live` that may hold each free address, in the order of their turns. `holders` have the other ones.
pub(crate) fn preference_order<'a>(
    assignments: &'a Assignments,
    live: &BTreeSet<&'a str>,
    holders: &BTreeMap<IpAddr, &'a str>,
    free: &BTreeSet<IpAddr>,
) -> BTreeMap<IpAddr, Vec<&'a str>> {
    // The addresses of a Service with `externalTrafficPolicy: Local` have nodes of their own, so there may be thousands
    // of groups.
    let mut groups: BTreeMap<&BTreeSet<String>, Vec<IpAddr>> = BTreeMap::new();
    for (address, Assignment { nodes, .. }) in assignments {
        groups.entry(nodes).or_default().push(*address);
    }
    let mut preferences = BTreeMap::new();
    for (nodes, addresses) in groups {
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).filter(|node| live.contains(node)).collect();
        if nodes.is_empty() || !addresses.iter().any(|address| free.contains(address)) {
            continue;
        }
        let share = addresses.len().div_ceil(nodes.len());
        let mut loads: BTreeMap<&str, usize> = BTreeMap::new();
        for holder in addresses.iter().filter(|address| !free.contains(*address)).filter_map(|a| holders.get(a)) {
            *loads.entry(holder).or_default() += 1;
        }
        for address in addresses.iter().filter(|address| free.contains(*address)) {
            let mut order = order(*address, nodes.iter().copied());
            let room = |node: &&str| loads.get(node).copied().unwrap_or_default() < share;
            if let Some(first) = order.iter().position(room) {
                order[..=first].rotate_right(1);
            }
            if let Some(first) = order.first() {
                *loads.entry(first).or_default() += 1;
            }
            preferences.insert(*address, order);
        }
    }
    preferences
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
