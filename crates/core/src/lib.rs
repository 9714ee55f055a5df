//! Decides which ClusterIP and which external addresses a Kubernetes Service gets, and which pod CIDRs a Node.
//!
//! [`decide()`] takes typed values: a request, the settings, what is in use, and a host that implements
//! [`lookups::Cluster`]. [`validate`] does the same with JSON, for the policy module.
//!
//! # Promises
//!
//! - Pure: the cluster is read through the port [`lookups::Cluster`] only. There is no clock, no randomness and no log.
//!   Calls share nothing.
//! - Deterministic: the same request, settings and cluster give the same bytes.
//! - Total: no input panics, however malformed.

pub mod address;
pub mod annotations;
pub mod decide;
pub mod decision;
pub mod external;
pub mod field_mask;
pub mod json;
pub mod label_selector;
pub mod lookups;
pub mod nodes;
pub mod request;
pub mod service;
pub mod service_key;
pub mod services;
pub mod settings;
pub mod workload;

pub use decide::{InUse, Response, SettingsResponse, decide, decide_create, decide_value, validate, validate_settings};
pub use decision::{Decision, Denial, Verdict};

/// The items in their order, each of them once.
pub fn distinct<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for item in items {
        if !distinct.contains(&item) {
            distinct.push(item);
        }
    }
    distinct
}
