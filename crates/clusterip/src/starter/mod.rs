//! Starter settings for a cluster: what `clusterip init` prints.
//!
//! [`facts`] are read from the cluster, [`pools`] divides its Service ranges, and [`document`] formats the settings.

pub mod document;
pub mod facts;
pub mod pools;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
