//! The ValidatingAdmissionPolicies of `deploy`, as they are shipped: what they refuse, and what they must allow.

mod agent_leases;
mod moving_annotation;
mod stolen_server_token;
pub mod support;
mod temporary_service_deletions;
mod temporary_services;
mod webhook_configuration;
