//! The pod CIDRs of Nodes: who holds which blocks, and which are not as they should be.
//!
//! [`held`] is what is known of the cluster, as the policy is told it; [`placement`] holds a Node's blocks
//! against the pool that the policy names; [`fill`] counts the blocks of a range; [`planner`] gives blocks to
//! the Nodes of manifests.

pub mod fill;
pub mod held;
pub mod placement;
pub mod planner;
