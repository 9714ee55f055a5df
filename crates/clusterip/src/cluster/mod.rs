//! The state of the cluster: answers to the policy's look-ups, and reservations of addresses.

pub mod answers;
pub mod bounds;
pub mod claim_lease;
pub mod claims;
pub mod failure;
pub mod fields;
pub mod fill;
pub mod json_list;
pub mod kept;
pub mod kinds;
pub mod ledger;
pub mod listeners;
pub mod live;
pub mod live_lookups;
pub mod lookups;
pub mod manifests;
pub mod masked;
pub mod object;
pub mod pauses;
pub mod selectors;
pub mod service_ranges;
pub mod share;
pub mod snapshot;
pub mod stores;
pub mod watched;
pub mod yaml;
