//! The state of the cluster: answers to the policy's look-ups, and reservations of addresses.

pub mod api_error;
pub mod backoff;
pub mod bounds;
pub mod claim_lease;
pub mod claims;
pub mod field_mask;
pub mod fields;
pub mod json_list;
pub mod kinds;
pub mod kubewarden_responses;
pub mod ledger;
pub mod live;
pub mod live_lookups;
pub mod lookups;
pub mod manifest_edit;
pub mod manifests;
pub mod object;
pub mod partial_object;
pub mod projection;
pub mod selectors;
pub mod service_ranges;
pub mod share;
pub mod snapshot;
pub mod stores;
pub mod subscriptions;
pub mod yaml;
