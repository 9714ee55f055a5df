//! Decides which pod CIDRs a Kubernetes Node gets.
//!
//! `object` reads the fields of a Node, `pool` chooses a pool of
//! the settings, `assign` takes the next blocks of that pool that the
//! host does not say to be in use, `place` compares a block with the pools, and `check`
//! checks blocks that the policy did not set. `decide` calls them.
//!
//! Only a host that sends the blocks in use gets new blocks: the controller, one request at a time. Admission checks
//! blocks and never sets them, because the API server accepts a block that two Nodes have, and a kubelet that registers
//! its Node again would waste one block each time.

mod assign;
mod check;
mod decide;
mod object;
mod place;
mod pool;

pub use assign::Allocation;
pub(crate) use decide::decide;
pub use object::{Node, blocks};
pub use place::{BlockPlace, place_of};
