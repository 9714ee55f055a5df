//! Assigns external addresses to Services, and reports where they are held.
//!
//! - [`controller`] assigns addresses to Services that admission did not see, and writes the status of all Services.
//!   `holder_reports` decides which changes of holders it reports, and `address_usage` counts how full the pools are.
//! - [`plan_state`] collects the addresses of all Services for a plan.

mod address_usage;
pub mod controller;
pub mod external_metrics;
mod holder_reports;
pub mod plan_state;
