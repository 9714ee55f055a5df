//! Decides which pod CIDRs a Kubernetes Node gets.
//!
//! [`object`] is what is read of a Node, [`allocation`] what its host says is handed out already, [`pool`]
//! chooses among the pools of the settings, `assign` takes the next blocks of one, `check` judges those that
//! somebody else set; [`decide`] ties them together.
//!
//! A block is handed out only to whoever says what is held and where to go on: the controller, one at a
//! time. In admission a Node's blocks are checked and never set: the API server refuses no block that is
//! given twice, and a kubelet that registers its Node again would waste one each time.

pub mod allocation;
mod assign;
mod check;
pub mod decide;
pub mod object;
pub mod pool;

pub use allocation::Allocation;
pub use decide::decide;
pub use object::Node;
