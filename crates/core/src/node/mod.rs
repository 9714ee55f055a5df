//! Decides which pod CIDRs a Kubernetes Node gets.
//!
//! [`object`] reads the fields of a Node, `allocation` reads the blocks in use from the host, `pool` chooses a pool of
//! the settings, `assign` takes the next blocks of that pool, `place` compares a block with the pools, and `check`
//! checks blocks that the policy did not set. `decide` calls them.
//!
//! Only a host that sends the blocks in use gets new blocks: the controller, one request at a time. Admission checks
//! blocks and never sets them, because the API server accepts a block that two Nodes have, and a kubelet that registers
//! its Node again would waste one block each time.

mod allocation;
mod assign;
mod check;
mod decide;
pub mod object;
mod place;
mod pool;

pub use allocation::Allocation;
pub(crate) use decide::decide;
pub use object::Node;
pub use place::{BlockPlace, place_of};
