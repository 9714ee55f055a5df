//! Assigns external addresses to Services, and reports where they are held.
//!
//! - `controller` assigns addresses to Services that admission did not see, and writes the status of all Services.
//!   `waiting` decides about which Service `assigner` asks the policy next, `status_writes` writes the statuses, and
//!   `holder_reports` decides which changes of holders are reported.
//! - `plan_state` collects the addresses of all Services for a plan.

pub(crate) mod assigner;
pub(crate) mod controller;
pub(crate) mod external_metrics;
mod holder_reports;
pub(crate) mod plan_state;
mod status_writes;
mod waiting;
