//! The blocks of Nodes, and which Nodes have each of them.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::stored_objects::StoredNode;

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
