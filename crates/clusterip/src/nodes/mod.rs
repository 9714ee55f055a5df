//! The pod CIDRs of Nodes: gives Nodes their blocks, and finds misplaced blocks.
//!
//! [`held`] is the state of the cluster, as the policy is given it; [`placement`] compares a Node's blocks with the
//! pool that the policy names; [`fill`] counts the blocks of a range; [`planner`] gives blocks to the Nodes of
//! manifests.
//!
//! [`assigner`] is the loop that gives Nodes their blocks: [`seen`] is a Node as it is watched, [`book`] is the state
//! of all Nodes and decides which is next, [`asker`] asks the policy, [`patch`] writes blocks, and [`events`] reports
//! Nodes that get no blocks.

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
