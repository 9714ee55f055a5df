//! External addresses of Services, as the cluster's objects show them: which Services have recorded which addresses,
//! and which nodes may hold them.
//!
//! - [`service_fields`] reads the fields of a Service, [`policy_check`] asks the policy whether the Service may have
//!   its addresses, and [`eligible`] selects the Nodes that may hold them.
//! - [`assignment_builder`] computes the addresses that agents are to hold, and [`assignment_watcher`] keeps them up to date.
//! - [`admission_state`] collects the addresses that all Services have or claim for admission, and [`plan_state`] does
//!   so for a plan.
//! - [`controller`] assigns addresses to Services that admission did not see, and writes the status of all Services.
//!   `holder_reports` decides which changes of holders it reports, and `address_usage` counts how full the pools are.

mod address_usage;
pub mod admission_state;
pub mod assignment_builder;
pub mod assignment_watcher;
pub mod controller;
pub mod eligible;
mod holder_reports;
pub mod plan_state;
pub mod policy_check;
pub mod service_fields;
