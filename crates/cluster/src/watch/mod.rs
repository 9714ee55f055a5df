//! Watches the objects of a cluster that decisions are made from.

pub mod control_plane_services;
pub mod kinds;
pub mod partial_object;
pub mod service_ranges;
pub mod stores;
pub mod subscriptions;
pub mod watched_fields;
