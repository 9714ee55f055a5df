//! Moves on a real API server: which fields are kept, concurrent changes of other programs, and targets that are taken,
//! forbidden or unavailable.

mod api_server_errors;
mod applied_manifests;
mod concurrent_changes;
mod kept_fields;
mod records;
mod support;
mod taken_targets;
mod unmoved_services;
