//! External addresses of Services, as far as the cluster's objects tell: which Services have recorded which
//! addresses, and which nodes may hold them.
//!
//! [`recorded`] reads a Service, [`admitted`] asks the policy about it, and [`eligible`] reads the Nodes.
//! [`assignments`] puts together what the agents are to hold, and [`follow`] keeps that up to date.
//!
//! [`mentioned`] reads what any Service has or claims. [`placing`] is what admission needs of all Services, and
//! [`planned`] what a plan needs. [`controller`] looks after the Services that admission did not see, and after the
//! status of all.

pub mod addresses_in_use;
pub mod assignment_watcher;
pub mod assignments;
pub mod controller;
pub mod eligible;
mod holdings;
pub mod placing;
pub mod plan_state;
pub mod policy_check;
pub mod service_fields;
mod usage;
