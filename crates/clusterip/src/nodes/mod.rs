//! The pod CIDRs of Nodes: who holds which blocks, and which are not as they should be.
//!
//! [`held`] is what is known of the cluster, as the policy is told it; [`placement`] holds a Node's blocks
//! against the pool that the policy names; [`fill`] counts the blocks of a range; [`planner`] gives blocks to
//! the Nodes of manifests.
//!
//! [`assigner`] is the loop that gives Nodes their blocks: [`seen`] is a Node as it is watched, [`book`] says
//! whose turn it is and what is given to whom, [`asker`] asks the policy, [`patch`] writes, [`events`] tells of
//! what can't be.

pub mod asker;
pub mod assigner;
pub mod book;
pub mod events;
pub mod fill;
pub mod held;
pub mod patch;
pub mod placement;
pub mod planner;
pub mod pool_blocks;
pub mod seen;
