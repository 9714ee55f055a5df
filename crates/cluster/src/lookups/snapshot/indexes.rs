//! Which Services have each address, and which Nodes each block.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use clusterip_core::address::{AddressSet, Span};
use clusterip_core::service_key::ServiceKey;
use ipnet::IpNet;

use super::stored_objects::StoredNode;

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
    /// Adds the addresses of a Service.
    pub(super) fn add(&mut self, service: &ServiceKey, addresses: &[IpAddr]) {
        for address in addresses {
            self.owners.insert((*address, service.clone()));
            self.used.insert(*address);
        }
    }

    /// Removes the addresses of a Service.
    pub(super) fn forget(&mut self, service: &ServiceKey, addresses: &[IpAddr]) {
        for address in addresses {
            self.owners.remove(&(*address, service.clone()));
            if !self.has(*address) {
                self.used.remove(*address);
            }
        }
    }

    /// Whether a Service has this address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.owners(address).next().is_some()
    }

    /// The Services that have this address, in order.
    pub(super) fn owners(&self, address: IpAddr) -> impl Iterator<Item = &ServiceKey> {
        let owners = self.owners.range((address, ServiceKey::default())..);
        owners.take_while(move |(other, _)| *other == address).map(|(_, service)| service)
    }

    /// Every address that a Service has, in order.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let mut last = None;
        let addresses = self.owners.iter().map(|(address, _)| *address);
        addresses.filter(move |address| last.replace(*address) != Some(*address))
    }

    /// Calls `visit` with the namespace, name and address of each Service and each of its addresses, in any order.
    pub(super) fn each(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) {
        self.owners.iter().for_each(|(address, ServiceKey { namespace, name })| visit(namespace, name, *address));
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

/// The blocks of all Nodes.
#[derive(Default)]
pub(super) struct BlockIndex {
    /// Ordered by the first address, and then by the length of the prefix.
    nodes: BTreeMap<IpNet, BTreeSet<String>>,
}

impl BlockIndex {
    /// Adds the blocks of a Node.
    pub(super) fn add(&mut self, node: &StoredNode) {
        for block in &node.blocks {
            self.nodes.entry(*block).or_default().insert(node.name.clone());
        }
    }

    /// Removes the blocks of a Node.
    pub(super) fn forget(&mut self, node: &StoredNode) {
        for block in &node.blocks {
            let Some(nodes) = self.nodes.get_mut(block) else { continue };
            nodes.remove(&node.name);
            if nodes.is_empty() {
                self.nodes.remove(block);
            }
        }
    }

    /// Calls `visit` with each block that has an address of one of these blocks, and with the Nodes that have it.
    pub(super) fn each_overlapping<'s>(&'s self, blocks: &[IpNet], visit: &mut dyn FnMut(IpNet, &'s BTreeSet<String>)) {
        // Two CIDRs have addresses in common only if one of them contains the other.
        let around = |block: &IpNet| std::iter::successors(block.supernet(), IpNet::supernet);
        let larger = blocks.iter().flat_map(around).filter_map(|block| self.nodes.get_key_value(&block));
        let within = |block: &IpNet| {
            let block = *block;
            // A larger block with the same first address comes before this one.
            self.nodes.range(block..).take_while(move |(other, _)| block.contains(*other))
        };
        larger.chain(blocks.iter().flat_map(within)).for_each(|(block, nodes)| visit(*block, nodes));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_core::address::overlap;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn node(name: usize, block: IpNet) -> StoredNode {
        StoredNode::read(&json!({"metadata": {"name": format!("n{name}")}, "spec": {"podCIDRs": [block]}}))
    }

    fn block() -> impl Strategy<Value = IpNet> {
        let v4 = (0_u32..32, 26_u8..=32).prop_map(|(last, length)| IpNet::new([10, 0, 0, last as u8].into(), length));
        let v6 = (0_u16..32, 122_u8..=128)
            .prop_map(|(last, length)| IpNet::new([0xfd00, 0, 0, 0, 0, 0, 0, last].into(), length));
        let wide = prop::sample::select(vec!["0.0.0.0/0", "::/0", "255.255.255.255/32", "10.0.0.0/8", "fd00::/8"]);
        let wide = wide.prop_map(|text| text.parse::<IpNet>().unwrap());
        prop_oneof![4 => v4.prop_map(Result::unwrap), 4 => v6.prop_map(Result::unwrap), 1 => wide]
            .prop_map(|block| block.trunc())
    }

    proptest! {
        #[test]
        fn index_finds_the_nodes_that_a_comparison_with_each_finds(
            held in prop::collection::vec((block(), any::<bool>()), 0..40),
            asked in prop::collection::vec(block(), 0..3),
        ) {
            let mut index = BlockIndex::default();
            held.iter().enumerate().for_each(|(name, (block, _))| index.add(&node(name, *block)));
            for (name, (block, is_forgotten)) in held.iter().enumerate() {
                if *is_forgotten {
                    index.forget(&node(name, *block));
                }
            }
            let expected: BTreeSet<String> = held
                .iter()
                .enumerate()
                .filter(|(_, (block, is_forgotten))| !is_forgotten && asked.iter().any(|asked| overlap(*asked, *block)))
                .map(|(name, _)| format!("n{name}"))
                .collect();
            let mut found = BTreeSet::new();
            index.each_overlapping(&asked, &mut |_, nodes| found.extend(nodes.iter().cloned()));
            prop_assert_eq!(found, expected);
        }
    }
}
