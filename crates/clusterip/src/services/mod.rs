//! Finds misplaced Services of a cluster, and moves them to addresses of their pool.

pub(crate) mod cluster_dns;
pub mod controller;
pub(crate) mod misplaced;
pub mod mover;
pub(crate) mod own_revisions;
pub(crate) mod service_metrics;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod test_support;
