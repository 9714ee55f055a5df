//! External addresses of Services, as the cluster's objects show them: which Services have recorded which addresses,
//! and which nodes may hold them.

pub mod assignment_builder;
pub mod assignment_watcher;
pub mod decide_and_reserve;
pub mod policy_check;
pub mod service_fields;
