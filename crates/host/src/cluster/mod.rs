//! The state of the cluster: answers to the policy's look-ups, and reservations of addresses.

pub mod address_set_by_hand;
pub mod api_server_lists;
pub mod api_server_lookups;
pub mod control_plane_services;
pub mod dynamic_resource;
pub mod field_limits;
pub mod field_mask;
pub mod json_list;
pub mod kinds;
pub mod kubewarden_responses;
pub mod ledger;
pub mod manifest_edit;
pub mod manifests;
pub mod namespace_share;
pub mod partial_object;
pub mod projection;
pub mod replica_claims;
pub mod selectors;
pub mod service_ranges;
pub mod snapshot;
pub mod stores;
pub mod subscriptions;
pub mod watched_fields;
pub mod watched_lookups;
