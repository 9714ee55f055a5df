//! Pools as objects: shows in their status what `clusterip serve` observed.
//!
//! - `counts` counts how full the pools are.
//! - `desired_status` is the status that each object should have.
//! - `status_writer` writes it while this process leads.

mod counts;
mod desired_status;
pub(crate) mod status_writer;
