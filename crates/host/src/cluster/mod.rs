//! The state of the cluster: answers to the policy's look-ups, and reservations of addresses.

pub mod any_kind;
pub mod bounds;
pub mod control_plane_services;
pub mod field_mask;
pub mod fields;
pub mod json_list;
pub mod kinds;
pub mod kubewarden_responses;
pub mod ledger;
pub mod live_cluster;
pub mod live_lookups;
pub mod lookups;
pub mod manifest_edit;
pub mod manifests;
pub mod object;
pub mod ownership;
pub mod partial_object;
pub mod projection;
pub mod replica_claims;
pub mod selectors;
pub mod service_ranges;
pub mod share;
pub mod snapshot;
pub mod stores;
pub mod subscriptions;
pub mod yaml;
