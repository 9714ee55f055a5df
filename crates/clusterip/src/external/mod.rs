//! External addresses of Services, as far as the cluster's objects tell: who has recorded which, and which
//! nodes may hold them.
//!
//! [`recorded`] reads a Service, [`admitted`] asks the policy about it, [`eligible`] reads the Nodes;
//! [`assignments`] puts together what the agents are to hold, and [`follow`] keeps that up to date.
//!
//! [`mentioned`] reads what any Service has or claims; [`placing`] is what admission needs of all of them, and
//! [`planned`] what a plan does.
//! [`controller`] looks after those that admission did not see, and after what their status shows.

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
