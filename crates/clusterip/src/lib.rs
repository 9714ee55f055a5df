//! The program `clusterip`: the server of a cluster, and the commands.
//!
//! - [`webhook`] answers admission requests, [`services`] moves misplaced Services, `nodes` assigns pod CIDRs, and
//!   `external` assigns external addresses. The last three work only while this process leads: see
//!   [`leader`].
//! - [`planner`] plans manifests, [`audit`] examines what is used, and [`usage`] counts it.
//! - [`report`] prints results for people and programs, and [`map_server`] serves the map.
//! - `starter` divides the Service ranges of a cluster into pools, for settings to start with.
//! - `commands` implement the command line on top of these.

// Only the program, its tests and its benchmarks use this library. A comment says what a name does not say.

pub mod audit;
pub mod cli;
mod commands;
mod external;
pub mod leader;
mod lease_namespaces;
pub mod map_server;
mod nodes;
pub mod planner;
mod pools;
pub mod report;
pub mod server_metrics;
mod service_placement;
mod service_selector;
pub mod services;
mod snapshot_kinds;
mod starter;
mod text;
pub mod usage;
pub mod webhook;
