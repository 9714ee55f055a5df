//! The pod CIDRs of Nodes: gives Nodes their blocks, and finds misplaced blocks.
//!
//! - [`held_blocks`] records which Node has which block, as the policy needs it.
//! - [`block_placement`] compares the blocks of a Node with the pool that the policy names.
//! - [`block_planner`] plans blocks for the Nodes of manifests.
//!
//! [`controller`] is the control loop, which gives Nodes their blocks. [`watched_node`] is a watched Node,
//! [`allocation_state`] is the state of all Nodes and decides which Node is next, [`patch`]
//! writes blocks, and [`node_events`] reports Nodes that get no blocks.

pub mod allocation_state;
pub mod block_placement;
pub mod block_planner;
pub mod controller;
pub mod held_blocks;
pub mod node_events;
pub mod node_metrics;
pub mod patch;
pub mod watched_node;
