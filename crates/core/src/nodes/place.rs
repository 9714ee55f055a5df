//! Compares the place of a block with the pool of its Node.

use ipnet::IpNet;

use crate::address::overlap;
use crate::settings::{NodePool, Settings, Withheld};

/// Where a block of a Node lies, compared with the pool that the Node belongs to. Blocks of other Nodes don't matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlace<'s> {
    /// In the Node's pool. If no pool matches the Node: outside of all pools.
    Right,
    /// The block has addresses of this pool, which is not the Node's pool.
    OtherPool {
        /// The other pool.
        pool: &'s NodePool,
        /// Whether one range of the other pool contains the whole block.
        is_whole: bool,
    },
    /// In the Node's pool, but with addresses of a range from which no block is handed out.
    Withheld {
        /// The range.
        range: IpNet,
        /// Why no block is handed out from the range.
        why: Withheld<'s>,
    },
    /// Partly in the Node's pool, and partly in no pool.
    PartlyInPool,
    /// In no pool, although a pool matches the Node.
    NoPool,
}

/// Where `block` lies, for a Node that belongs to the pool `own`.
///
/// The settings guarantee that ranges of pools don't overlap, so at most one pool contains the whole block. A block
/// that is larger than a range may have addresses of several pools. Then [`BlockPlace::OtherPool`] takes precedence
/// over [`BlockPlace::PartlyInPool`]: the order of the pools must not decide whether the conflict is seen.
pub fn place_of<'s>(block: IpNet, own: Option<&NodePool>, settings: &'s Settings) -> BlockPlace<'s> {
    let pools = &settings.nodes.pools;
    if let Some(pool) = pools.iter().find(|pool| pool.cidr_of(block).is_some()) {
        if own != Some(pool) {
            return BlockPlace::OtherPool { pool, is_whole: true };
        }
        let withheld = settings.withheld_from(pool).find(|(range, _)| overlap(*range, block));
        return withheld.map_or(BlockPlace::Right, |(range, why)| BlockPlace::Withheld { range, why });
    }
    if let Some(pool) = pools.iter().find(|pool| own != Some(*pool) && pool.meets(block)) {
        return BlockPlace::OtherPool { pool, is_whole: false };
    }
    match own {
        None => BlockPlace::Right,
        Some(own) if own.meets(block) => BlockPlace::PartlyInPool,
        Some(_) => BlockPlace::NoPool,
    }
}
