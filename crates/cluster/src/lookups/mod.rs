//! Answers the look-ups of decisions, and those of the policy module.

pub mod complete_objects;
pub mod selectors;
pub mod stored_cluster;
