//! Tests against a real control plane: what the API server does is part of what is tested.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../missing.rs"]
mod missing;
mod support;

mod admission;
mod agent;
mod audit;
mod brakes;
mod certificates;
mod changing_pools;
mod chaos;
mod claims;
mod client_certificates;
mod control_plane;
mod control_plane_services;
mod controller;
mod crashes;
mod deploy_external;
mod deploy_kubewarden;
mod deploy_nodes;
mod deploy_webhook;
mod evaluate;
mod evidence;
mod external_admission;
mod external_audit;
mod external_claims;
mod families;
mod faults;
mod leader;
mod map;
mod migration;
mod move_command;
mod moves;
mod node_admission;
mod node_migration;
mod nodes;
mod nodes_as_original;
mod ownership;
mod parallel;
mod permissions;
mod plan_cluster;
mod policies;
mod proxy;
mod reinvocation;
mod replicas;
mod service_ranges;
mod settings;
mod shares;
mod takeover;
mod tenants;
mod tuned;
mod upgrades;
