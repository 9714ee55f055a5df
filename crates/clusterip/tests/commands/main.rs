//! The commands that need no cluster, run as a user runs them: output, exit status and messages are compared whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit;
mod audit_external;
mod audit_nodes;
mod audit_pools;
mod audit_services;
mod bad_arguments;
mod bad_input;
mod command;
mod documentation;
mod evaluate;
mod evaluate_bad_input;
mod evaluate_sessions;
mod init;
mod kubectl_plugin;
mod plan;
mod plan_external;
mod plan_input;
mod plan_kustomize;
mod plan_misplaced;
mod plan_nodes;
mod plan_refused;
mod plan_scope;
mod plan_service_ranges;
mod plan_unusual_input;
mod settings;
mod terminal;
mod validate;
