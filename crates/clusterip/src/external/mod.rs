//! External addresses of Services, as far as the cluster's objects tell: which Services have recorded which
//! addresses, and which nodes may hold them.
//!
//! [`recorded`] reads a Service, [`admitted`] asks the policy about it, and [`eligible`] reads the Nodes.
//! [`assignments`] puts together what the agents are to hold, and [`follow`] keeps that up to date.
//!
//! [`mentioned`] reads what any Service has or claims. [`placing`] is what admission needs of all Services, and
//! [`planned`] what a plan needs. [`controller`] looks after the Services that admission did not see, and after the
//! status of all.

pub mod admitted;
pub mod assignments;
pub mod controller;
pub mod eligible;
mod fill;
pub mod follow;
mod holdings;
pub mod mentioned;
pub mod placing;
pub mod planned;
pub mod recorded;
