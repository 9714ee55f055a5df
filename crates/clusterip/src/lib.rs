//! The program `clusterip`: the server of a cluster, and the commands.
//!
//! - [`webhook`] answers admission requests, [`services`] moves misplaced Services, [`nodes`] assigns pod CIDRs, and
//!   [`external`] assigns external addresses. The last three work only while this process leads: see
//!   [`leader`].
//! - [`manifest_planner`] plans manifests, and [`audit`] examines what is used.
//! - [`report`] prints results for people and programs, and [`ui`] serves the map.
//! - [`starter`] divides the Service ranges of a cluster into pools, for settings to start with.
//! - [`commands`] implement the command line on top of these.

pub mod api_server_rules;
pub mod audit;
pub mod cli;
pub mod commands;
pub mod dns_address;
pub mod external;
pub mod joined;
pub mod kustomization;
pub mod leader;
pub mod manifest_planner;
pub mod nodes;
pub mod other_webhooks;
pub mod own_leases;
pub mod pool_use;
pub mod pools;
pub mod report;
pub mod reservation_holder;
pub mod server_metrics;
pub mod service_placement;
pub mod service_selector;
pub mod services;
pub mod snapshot_kinds;
pub mod starter;
pub mod ui;
pub mod webhook;
