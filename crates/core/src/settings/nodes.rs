//! The settings about the pod CIDRs of Nodes: reads `nodes`, and checks its pools against each other and against the
//! pools of Services.

use ipnet::IpNet;

use super::pools::{self, Common, PoolPaths};
use super::reader::Reader;
use super::{Explicit, Mistake, Settings};
use crate::address::{Blocks, Family, Occupancy, overlap};
use crate::distinct;
use crate::json::{Located, describe};
use crate::label_selector::{LabelSelector, Labels, includes};

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
    pub name: String,
    /// The ranges, without host bits. They overlap neither each other nor those of another pool.
    pub cidrs: Vec<IpNet>,
    pub block_size: BlockSize,
    /// Ranges and addresses that are never handed out; a block that overlaps one is skipped.
    pub exclude: Vec<IpNet>,
    pub matches: NodeMatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize {
    pub v4: u8,
    pub v6: u8,
}

/// The Nodes that a pool is for. Every condition must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMatch {
    /// The labels that the Node must have. `match.os` is one of them.
    pub node_labels: Labels,
    pub node_selector: LabelSelector,
}

impl Default for BlockSize {
    /// `/24` and `/64`, the defaults of the Kubernetes controller manager.
    fn default() -> Self {
        Self { v4: 24, v6: 64 }
    }
}

impl BlockSize {
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
        distinct(self.cidrs.iter().map(|cidr| Family::of(cidr.addr())))
    }

    pub fn cidrs_of(&self, family: Family) -> impl Iterator<Item = IpNet> {
        self.cidrs.iter().copied().filter(move |cidr| Family::of(cidr.addr()) == family)
    }

    /// Cuts one of the ranges into blocks. Checked settings contain no range that is smaller than a block.
    pub fn blocks(&self, cidr: IpNet) -> Result<Blocks, String> {
        Blocks::new(cidr, self.block_size.of(Family::of(cidr.addr())))
    }

    /// The range that contains all addresses of `block`.
    pub fn cidr_of(&self, block: IpNet) -> Option<IpNet> {
        self.cidrs.iter().copied().find(|cidr| cidr.contains(&block))
    }

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

    /// The blocks of one range of a pool, and the indices of those that are withheld.
    pub fn withheld_blocks(&self, pool: &NodePool, cidr: IpNet) -> Result<(Blocks, Occupancy), String> {
        let (blocks, mut withheld) = (pool.blocks(cidr)?, Occupancy::default());
        withheld.extend(self.withheld_from(pool).filter_map(|(range, _)| blocks.indices(range)));
        Ok((blocks, withheld))
    }
}

/// Why a block is not handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld<'s> {
    ServiceRange,
    /// It overlaps the pool of Services with this name.
    ServicePool(&'s str),
    /// It overlaps `exclude` of the pool.
    Excluded,
}

impl Reader {
    pub(super) fn nodes(&mut self, at: &Located<'_>, nodes: &mut NodeSettings) -> Vec<PoolPaths> {
        let paths;
        let Some(fields) = self.fields(at, &["pools", "explicit"]) else { return Vec::new() };
        (nodes.pools, paths) = self.required_pools(at, &fields, "nodes", Self::node_pool).into_iter().unzip();
        nodes.explicit = self.field(&fields, "explicit", Self::explicit);
        paths
    }

    fn node_pool(&mut self, at: &Located<'_>) -> Option<(NodePool, PoolPaths)> {
        let mut fields = self.pool_fields(at, &["name", "cidrs", "blockSize", "exclude", "match"])?;
        let pool = NodePool {
            name: self.pool_name(&fields),
            cidrs: self.pool_ranges(&mut fields, Self::cidr),
            block_size: self.field(&fields.fields, "blockSize", Self::block_size),
            exclude: self.pool_exclude(&mut fields, Self::cidr_or_address),
            matches: self.pool_match(&mut fields, Self::node_match),
        };
        Some((pool, fields.paths))
    }

    fn block_size(&mut self, at: &Located<'_>) -> Option<BlockSize> {
        let fields = self.fields(at, &["ipv4", "ipv6"])?;
        let default = BlockSize::default();
        let mut length =
            |key, family, default| fields.get(key).and_then(|at| self.prefix_length(at, family)).unwrap_or(default);
        Some(BlockSize { v4: length("ipv4", Family::V4, default.v4), v6: length("ipv6", Family::V6, default.v6) })
    }

    fn prefix_length(&mut self, at: &Located<'_>, family: Family) -> Option<u8> {
        let length = at.value.as_u64().and_then(|length| u8::try_from(length).ok());
        let length = length.filter(|length| (1..=family.bits()).contains(length));
        if length.is_none() {
            let found = describe(at.value);
            let reason = format!("expected a prefix length from 1 to {}, found {found}", family.bits());
            self.mistake(at.path.clone(), reason);
        }
        length
    }

    fn node_match(&mut self, at: &Located<'_>) -> Option<NodeMatch> {
        let fields = self.fields(at, &["os", "nodeLabels", "nodeSelector"])?;
        let node_labels = self.node_labels(&fields);
        Some(NodeMatch { node_labels, node_selector: self.field(&fields, "nodeSelector", Self::selector) })
    }
}

/// The mistakes in pools of Nodes that contradict each other or the other settings. `paths` has one entry for each
/// pool.
pub(super) fn mistakes(settings: &Settings, paths: &[PoolPaths]) -> Vec<Mistake> {
    let pools = &settings.nodes.pools;
    let all: Vec<Common<'_>> = pools.iter().map(|pool| Common::new(&pool.name, &pool.cidrs, &pool.exclude)).collect();
    let of_range = |pool: usize, range: usize| {
        let (pool, cidr) = (&pools[pool], pools[pool].cidrs[range]);
        let full = match settings.withheld_blocks(pool, cidr) {
            Err(error) => Some(error),
            Ok((blocks, withheld)) => blocks.next_free(&withheld, 0).is_none().then(|| {
                format!("{cidr} has no usable block: all overlap Service ranges, pools of Services or exclude")
            }),
        };
        [of_services(settings, pool, cidr), full]
    };
    let covers = |pool: usize, other: usize| pools[pool].matches.covers(&pools[other].matches);
    pools::mistakes(&all, paths, &of_range, &covers)
}

pub(super) fn warnings(settings: &Settings) -> Vec<Mistake> {
    let mut warnings = Vec::new();
    for (index, pool) in settings.nodes.pools.iter().enumerate() {
        for (position, cidr) in pool.cidrs.iter().enumerate() {
            if let Some(range) = settings.service_cidrs.iter().find(|range| overlap(**range, *cidr)) {
                let reason =
                    format!("{cidr} overlaps the Service range {range}: blocks that overlap it are not assigned");
                warnings.push(Mistake { path: format!("nodes.pools[{index}].cidrs[{position}]"), reason });
            }
        }
    }
    warnings
}

/// The mistake if a range overlaps a pool of Services that it does not exclude: the settings would give the same
/// addresses to Services and to Nodes. A Service range is not a mistake, because its blocks are skipped, as the
/// Kubernetes controller manager does.
fn of_services(settings: &Settings, pool: &NodePool, cidr: IpNet) -> Option<String> {
    let excluded = |range: &IpNet| pool.exclude.iter().any(|excluded| excluded.contains(range));
    settings.pools.iter().find_map(|services| {
        let other = services.cidrs.iter().find(|other| overlap(**other, cidr) && !excluded(other))?;
        Some(format!("{cidr} overlaps {other} of the pool {:?} of Services: exclude it", services.name))
    })
}

impl NodeMatch {
    /// Whether it certainly matches everything that `other` matches: each of its conditions follows from a condition of
    /// `other`. Selectors are compared for equality only.
    fn covers(&self, other: &Self) -> bool {
        includes(&other.node_labels, &self.node_labels)
            && (self.node_selector.is_empty() || self.node_selector == other.node_selector)
    }
}
