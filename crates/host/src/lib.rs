//! The native host of the policy: it evaluates requests with the same core as the policy module, on manifests and on
//! clusters.
//!
//! - [`cluster`] answers the look-ups of the core, and [`policy`] runs builds of the module.
//! - [`live_settings`] follows the settings of a cluster.
//! - [`evaluator`] evaluates requests on a live cluster.
//! - [`external`] computes which external addresses Services have, and which nodes may hold them.
//! - [`permissions`] checks that the program may do what its settings require.
//! - [`lease_preconditions`] limits the deletion of a Lease to one version.
//! - [`object`] reads Kubernetes objects that are JSON, and [`yaml`] parses YAML with the position of each value.

pub mod cluster;
pub mod evaluator;
pub mod external;
pub mod host_metrics;
pub mod lease_preconditions;
pub mod live_settings;
pub mod object;
pub mod permissions;
pub mod policy;
mod text_parts;
pub mod yaml;
mod yaml_composer;
mod yaml_position;
mod yaml_scalar;
mod yaml_size;
