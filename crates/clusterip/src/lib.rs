//! The program `clusterip`: the server of a cluster, and the commands. CONTRIBUTING.md lists the folders and modules.
//! Only the program, its tests and its benchmarks use this library.

mod announcer_pools;
pub mod audit;
pub mod cli;
mod commands;
mod external;
mod fence_policies;
pub mod leader;
mod lease_namespaces;
pub mod map_server;
mod nodes;
pub mod planner;
mod pools;
mod renumber;
pub mod report;
pub mod server_metrics;
mod service_placement;
pub mod services;
mod snapshot_kinds;
mod starter;
mod text;
pub mod usage;
pub mod webhook;
