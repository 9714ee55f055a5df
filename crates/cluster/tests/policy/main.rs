//! The policy module and the host around it: what it imports, how it answers, and what it may look up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_host_answers;
mod bad_node_lists;
mod bad_requests;
mod changed_snapshot;
mod deployed_permissions;
mod host_calls;
mod kubewarden_deployment;
mod lookup_failures;
mod misbehaving_modules;
mod module;
mod module_equals_core;
mod query_shapes;
mod sessions;
mod snapshot_ip_addresses;
mod snapshot_lookups;
mod snapshot_masks;
mod support;
