//! The policy module and the host around it: what it imports, how it answers, and what it may look up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod changed_snapshot;
mod deployed_permissions;
mod filled_manifests;
mod kubewarden_deployment;
mod module;
mod node_review;
mod on_error;
mod sessions;
mod snapshot_lookups;
mod support;
