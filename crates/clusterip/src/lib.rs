//! The native host of the policy: it evaluates the same module as Kubewarden, on manifests and on clusters.
//!
//! - [`policy`] runs the module, and [`cluster`] answers its look-ups.
//! - [`webhook`] and [`controller`] serve the Services of a cluster, and [`nodes`] its Nodes.
//! - [`external`] assigns external addresses, and [`agent`] holds them on a node.
//! - [`report`] prints results for people and programs.
//! - [`commands`] implement the command line on top of these.

pub mod agent;
pub mod audit;
pub mod background;
pub mod cli;
pub mod cluster;
pub mod commands;
pub mod controller;
pub mod dns_address;
pub mod evaluator;
pub mod external;
pub mod live_settings;
pub mod logging;
pub mod manifest_planner;
pub mod metrics;
pub mod nodes;
pub mod permissions;
pub mod policy;
pub mod pool_use;
pub mod report;
pub mod service_placement;
pub mod settings;
pub mod ui;
pub mod webhook;
