//! The pod CIDRs of Nodes: gives Nodes their blocks, and finds misplaced blocks.
//!
//! - `held_blocks` records which Node has which block, and compares the blocks of a Node with its pool.
//! - `controller` is the control loop, which gives Nodes their blocks. `allocation_state` is the state of all Nodes
//!   and decides which Node is next, and `node_writer` writes blocks.

pub(crate) mod allocation_state;
pub(crate) mod controller;
pub(crate) mod held_blocks;
pub(crate) mod node_metrics;
pub(crate) mod node_writer;
