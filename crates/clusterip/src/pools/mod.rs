//! Pools as objects: shows in their status what `clusterip serve` observed.

mod counts;
mod desired_status;
pub(crate) mod status_writer;
