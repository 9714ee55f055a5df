//! Decides which pod CIDRs a Kubernetes Node gets.
//!
//! `pool` chooses the pool of a Node and compares blocks with it. `decide` takes the next blocks of that pool that the
//! host does not say to be in use, or checks blocks that the policy did not set.
//!
//! Only a host that sends the blocks in use gets new blocks: the controller, one request at a time. Admission checks
//! blocks and never sets them, because the API server accepts a block that two Nodes have, and a kubelet that registers
//! its Node again would waste one block each time.

mod decide;
mod pool;

pub use decide::Allocation;
pub(crate) use decide::decide;
pub use pool::{BlockPlace, place_of};
