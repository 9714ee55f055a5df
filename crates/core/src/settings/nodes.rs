//! The settings about the pod CIDRs of Nodes.

use ipnet::IpNet;

use super::{Explicit, Settings};
use crate::address::{BlockAllocator, BlockError, Blocks, Family, overlap};
use crate::label_selector::{LabelSelector, Labels};

/// `nodes`: which Node gets its pod CIDRs from where. Without pools nothing is done about Nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// `nodes.pools`, in the order in which they are tried.
    pub pools: Vec<NodePool>,
    /// `nodes.explicit`: what happens to a pod CIDR that somebody else set, and that is not right.
    pub explicit: Explicit,
}

/// A pool of blocks of addresses and the Nodes it is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePool {
    /// Unique among the pools of Nodes, a DNS label.
    pub name: String,
    /// Its ranges, without host bits; they overlap neither each other nor another pool's.
    pub cidrs: Vec<IpNet>,
    /// How large a block is.
    pub block_size: BlockSize,
    /// What is never handed out: every block that has an address of it.
    pub exclude: Vec<IpNet>,
    /// Which Nodes it is for.
    pub matches: NodeMatch,
}

/// The prefix lengths of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    /// Of IPv4 blocks.
    pub v4: u8,
    /// Of IPv6 blocks.
    pub v6: u8,
}

/// Which Nodes a pool is for: every condition must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMatch {
    /// Labels that the Node must have (`match.os` is one of them).
    pub node_labels: Labels,
    /// More about its labels.
    pub node_selector: LabelSelector,
}

impl Default for BlockSize {
    /// `/24` and `/64`, as the controller manager of Kubernetes has them.
    fn default() -> Self {
        Self { v4: 24, v6: 64 }
    }
}

impl BlockSize {
    /// The prefix length of a family's blocks.
    pub fn of(self, family: Family) -> u8 {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

impl NodePool {
    /// The families that it has ranges of, in the order of its ranges: that of a Node's blocks.
    pub fn families(&self) -> Vec<Family> {
        let mut families = Vec::new();
        for family in self.cidrs.iter().map(|cidr| Family::of(cidr.addr())) {
            if !families.contains(&family) {
                families.push(family);
            }
        }
        families
    }

    /// Its ranges of one family.
    pub fn cidrs_of(&self, family: Family) -> impl Iterator<Item = IpNet> {
        self.cidrs.iter().copied().filter(move |cidr| Family::of(cidr.addr()) == family)
    }

    /// One of its ranges, cut into blocks.
    ///
    /// # Errors
    /// [`BlockError::Length`] where a block would be larger than the range. Settings that were checked have
    /// no such range.
    pub fn blocks(&self, cidr: IpNet) -> Result<Blocks, BlockError> {
        Blocks::new(cidr, self.block_size.of(Family::of(cidr.addr())))
    }

    /// The range that all addresses of `block` lie in.
    pub fn cidr_of(&self, block: IpNet) -> Option<IpNet> {
        self.cidrs.iter().copied().find(|cidr| cidr.contains(&block))
    }

    /// Whether an address of `block` lies in one of its ranges.
    pub fn meets(&self, block: IpNet) -> bool {
        self.cidrs.iter().any(|cidr| overlap(*cidr, block))
    }
}

impl Settings {
    /// What is never handed out to Nodes, and why it is not: Service ranges, the pools of Services, and
    /// what the pool of Nodes excludes.
    pub fn withheld_from<'s>(&'s self, pool: &'s NodePool) -> impl Iterator<Item = (IpNet, Withheld<'s>)> {
        let ranges = self.service_cidrs.iter().map(|range| (*range, Withheld::ServiceRange));
        let pools =
            self.pools.iter().flat_map(|pool| pool.cidrs.iter().map(|cidr| (*cidr, Withheld::ServicePool(&pool.name))));
        let excluded = pool.exclude.iter().map(|range| (*range, Withheld::Excluded));
        ranges.chain(pools).chain(excluded)
    }

    /// Hands out the blocks of one range of a pool: nothing is held yet but what is never handed out.
    ///
    /// # Errors
    /// As [`NodePool::blocks`].
    pub fn block_allocator(&self, pool: &NodePool, cidr: IpNet) -> Result<BlockAllocator, BlockError> {
        let mut allocator = BlockAllocator::new(pool.blocks(cidr)?);
        for (range, _) in self.withheld_from(pool) {
            // What lies elsewhere is nothing to be kept free here.
            let _ = allocator.occupy(range);
        }
        Ok(allocator)
    }
}

/// Why a block is never handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld<'s> {
    /// It has addresses of a Service range of the cluster.
    ServiceRange,
    /// It has addresses of this pool of Services.
    ServicePool(&'s str),
    /// `exclude` of the pool.
    Excluded,
}
