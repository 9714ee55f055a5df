//! The settings about the pod CIDRs of Nodes.

use ipnet::IpNet;

use super::{Explicit, Settings};
use crate::address::{BlockAllocator, BlockError, Blocks, Family, overlap};
use crate::label_selector::{LabelSelector, Labels};

/// `nodes`: the pools of pod CIDRs for Nodes. Without pools, Nodes are left unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// `nodes.pools`, in the order in which they are tried.
    pub pools: Vec<NodePool>,
    /// `nodes.explicit`: what to do about a wrong pod CIDR that the policy did not assign.
    pub explicit: Explicit,
}

/// A pool of address blocks, and the Nodes it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePool {
    /// A DNS label, unique among the pools of Nodes.
    pub name: String,
    /// The ranges, without host bits. They overlap neither each other nor those of another pool.
    pub cidrs: Vec<IpNet>,
    /// The size of a block.
    pub block_size: BlockSize,
    /// Ranges and addresses that are never handed out; a block that overlaps one is skipped.
    pub exclude: Vec<IpNet>,
    /// The Nodes that the pool is for.
    pub matches: NodeMatch,
}

/// The prefix lengths of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// The prefix length of IPv4 blocks.
    pub v4: u8,
    /// The prefix length of IPv6 blocks.
    pub v6: u8,
}

/// The Nodes that a pool is for. Every condition must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMatch {
    /// The labels that the Node must have. `match.os` is one of them.
    pub node_labels: Labels,
    /// Further conditions on the labels of the Node.
    pub node_selector: LabelSelector,
}

impl Default for BlockSize {
    /// `/24` and `/64`, the defaults of the Kubernetes controller manager.
    fn default() -> Self {
        Self { v4: 24, v6: 64 }
    }
}

impl BlockSize {
    /// The prefix length of the blocks of a family.
    pub fn of(self, family: Family) -> u8 {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

impl NodePool {
    /// The families of the ranges, in the order of the ranges. The blocks of a Node have the same order.
    pub fn families(&self) -> Vec<Family> {
        let mut families = Vec::new();
        for family in self.cidrs.iter().map(|cidr| Family::of(cidr.addr())) {
            if !families.contains(&family) {
                families.push(family);
            }
        }
        families
    }

    /// The ranges of one family.
    pub fn cidrs_of(&self, family: Family) -> impl Iterator<Item = IpNet> {
        self.cidrs.iter().copied().filter(move |cidr| Family::of(cidr.addr()) == family)
    }

    /// Cuts one of the ranges into blocks.
    ///
    /// # Errors
    /// [`BlockError::Length`] if a block would be larger than the range. Checked settings contain no such range.
    pub fn blocks(&self, cidr: IpNet) -> Result<Blocks, BlockError> {
        Blocks::new(cidr, self.block_size.of(Family::of(cidr.addr())))
    }

    /// The range that contains all addresses of `block`.
    pub fn cidr_of(&self, block: IpNet) -> Option<IpNet> {
        self.cidrs.iter().copied().find(|cidr| cidr.contains(&block))
    }

    /// Whether `block` overlaps one of the ranges.
    pub fn meets(&self, block: IpNet) -> bool {
        self.cidrs.iter().any(|cidr| overlap(*cidr, block))
    }
}

impl Settings {
    /// The ranges from which Nodes get no blocks, each with the reason: the Service ranges, the pools of Services, and
    /// what `pool` excludes.
    pub fn withheld_from<'s>(&'s self, pool: &'s NodePool) -> impl Iterator<Item = (IpNet, Withheld<'s>)> {
        let ranges = self.service_cidrs.iter().map(|range| (*range, Withheld::ServiceRange));
        let pools =
            self.pools.iter().flat_map(|pool| pool.cidrs.iter().map(|cidr| (*cidr, Withheld::ServicePool(&pool.name))));
        let excluded = pool.exclude.iter().map(|range| (*range, Withheld::Excluded));
        ranges.chain(pools).chain(excluded)
    }

    /// An allocator for the blocks of one range of a pool. Blocks that are withheld count as used, all others as free.
    pub fn block_allocator(&self, pool: &NodePool, cidr: IpNet) -> Result<BlockAllocator, BlockError> {
        let mut allocator = BlockAllocator::new(pool.blocks(cidr)?);
        for (range, _) in self.withheld_from(pool) {
            // An error means that the range lies elsewhere, so there is nothing to withhold here.
            let _ = allocator.occupy(range);
        }
        Ok(allocator)
    }
}

/// Why a block is not handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld<'s> {
    /// It overlaps a Service range of the cluster.
    ServiceRange,
    /// It overlaps the pool of Services with this name.
    ServicePool(&'s str),
    /// It overlaps `exclude` of the pool.
    Excluded,
}
