//! The native host of the policy: it evaluates the same module that Kubewarden does, on manifests and
//! clusters.
//!
//! [`policy`] runs the module and carries what it asks; [`cluster`] is where the answers come from;
//! [`webhook`] and [`controller`] serve a cluster, [`nodes`] its Nodes; [`agent`] holds external addresses on a node; [`report`] shows results to people and programs;
//! [`commands`] tie them together.

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
pub mod metrics;
pub mod nodes;
pub mod permissions;
pub mod placement;
pub mod planner;
pub mod policy;
pub mod pool_use;
pub mod report;
pub mod settings;
pub mod ui;
pub mod webhook;
