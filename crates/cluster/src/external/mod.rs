//! External addresses of Services, as the cluster's objects show them: which Services have recorded which addresses,
//! and which nodes may hold them.
//!
//! - [`service_fields`] reads the fields of a Service, [`policy_check`] decides whether the Service may have its
//!   addresses, and [`eligible`] selects the Nodes that may hold them.
//! - [`assignment_builder`] computes the addresses that agents are to hold, and [`assignment_watcher`] keeps them up to
//!   date.
//! - [`admission_state`] collects the addresses of all Services for admission.

pub mod admission_state;
pub mod assignment_builder;
pub mod assignment_watcher;
pub mod eligible;
pub mod policy_check;
pub mod service_fields;
