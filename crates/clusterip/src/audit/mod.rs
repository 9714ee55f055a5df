//! What is used in a cluster, and what is not as it should be.

pub mod model;
