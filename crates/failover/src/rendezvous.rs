//! Rendezvous hashing: the order of preference of the nodes for an address.
//!
//! The weight of a node for an address is a hash of the two alone. Agents that know the same nodes therefore
//! compute the same order, whatever they knew before, and a node that leaves does not change the order of the
//! others.
//!
//! The hash is SipHash-2-4 with a key of zeros, over the number of octets of the address, the octets, and the
//! node's name. Agents of several releases run side by side during an upgrade, so the hash must never change.

use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;

/// The weight of a node for a key.
fn weight(key: &[u8], node: &str) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(&(key.len() as u64).to_le_bytes());
    hasher.write(key);
    hasher.write(node.as_bytes());
    hasher.finish()
}

fn by_weight<'a>(key: &[u8], nodes: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut weighed: Vec<(u64, &str)> = nodes.into_iter().map(|node| (weight(key, node), node)).collect();
    // The heaviest node comes first; equal weights are ordered by name.
    weighed.sort_unstable_by(|(one, a), (other, b)| other.cmp(one).then_with(|| a.cmp(b)));
    weighed.into_iter().map(|(_, node)| node).collect()
}

/// The nodes in their order of preference for this address.
pub fn order<'a>(address: IpAddr, nodes: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    match address {
        IpAddr::V4(address) => by_weight(&address.octets(), nodes),
        IpAddr::V6(address) => by_weight(&address.octets(), nodes),
    }
}

/// The nodes in the order of their turns to write or remove the Lease with this name.
pub(super) fn order_for<'a>(name: &str, nodes: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    by_weight(name.as_bytes(), nodes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_never_changes() {
        let nodes = ["node-1", "node-2", "node-3", "node-4"];
        let rows = GOLDEN;
        for (address, expected) in rows {
            assert_eq!(order(address.parse().unwrap(), nodes), expected, "{address}");
        }
    }

    const GOLDEN: [(&str, [&str; 4]); 3] = [
        ("10.0.9.10", ["node-4", "node-3", "node-2", "node-1"]),
        ("10.0.9.11", ["node-2", "node-4", "node-3", "node-1"]),
        ("fd00::1", ["node-3", "node-1", "node-2", "node-4"]),
    ];

    proptest! {
        #[test]
        fn node_that_leaves_does_not_change_the_order_of_the_others(
            address in any::<IpAddr>(),
            nodes in prop::collection::btree_set("[a-z]{1,8}", 1..8),
            leaving in any::<prop::sample::Index>(),
        ) {
            let all: Vec<&str> = nodes.iter().map(String::as_str).collect();
            let whole = order(address, all.iter().copied());
            prop_assert_eq!(&order(address, all.iter().rev().copied()), &whole, "the order of the input matters");
            prop_assert_eq!(whole.iter().collect::<BTreeSet<_>>(), all.iter().collect::<BTreeSet<_>>());
            let gone = all[leaving.index(all.len())];
            let rest: Vec<&str> = whole.into_iter().filter(|node| *node != gone).collect();
            prop_assert_eq!(order(address, all.iter().copied().filter(|node| *node != gone)), rest);
        }
    }
}
