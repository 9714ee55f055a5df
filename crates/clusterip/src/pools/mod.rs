//! Pools as objects: shows in their status what `clusterip serve` observed.
//!
//! - `usage` counts how full the pools are.
//! - `desired_status` is the status that each object should have.
//! - [`status_writer`] writes it while this process leads.

mod desired_status;
pub mod status_writer;
mod usage;
