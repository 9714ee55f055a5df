//! The pod CIDRs of Nodes: gives Nodes their blocks, and finds misplaced blocks.
//!
//! - [`held`] records which Node has which block, as the policy needs it.
//! - [`placement`] compares the blocks of a Node with the pool that the policy names.
//! - [`usage`] counts the blocks of a range, and [`pool_blocks`] those of a pool.
//! - [`planner`] plans blocks for the Nodes of manifests.
//!
//! [`assigner`] is the loop that gives Nodes their blocks. [`seen`] is a watched Node, [`allocation_state`] is the
//! state of all Nodes and decides which Node is next, [`asker`] asks the policy, [`patch`] writes blocks, and
//! [`events`] reports Nodes that get no blocks.

pub mod allocation_state;
pub mod asker;
pub mod assigner;
pub mod events;
pub mod held;
pub mod patch;
pub mod placement;
pub mod planner;
pub mod pool_blocks;
pub mod seen;
pub mod usage;
