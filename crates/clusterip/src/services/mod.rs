//! Finds misplaced Services of a cluster, and moves them to addresses of their pool.
//!
//! [`controller`] is the control loop. A move consists of [`mover`], which calls the API server; [`step`], which decides
//! the next step; [`journal`], the data that is needed to finish a move; and [`records`], which stores the journals.
//! [`spec_merge`] and [`field_ownership`] restore the Service and keep what others changed meanwhile. [`queue`] shares
//! the places among the namespaces, and [`requests`] holds what administrators ask for.

pub mod affected;
pub mod applied_settings;
mod attempt;
pub mod brakes;
pub mod controller;
pub mod endpoints;
pub mod field_ownership;
pub mod hand_over;
pub mod journal;
pub mod misplaced;
pub mod mover;
pub mod outcome;
pub mod queue;
pub mod reconcile;
pub mod records;
pub mod refusal;
pub mod replicas;
pub mod requests;
pub mod service_metrics;
pub mod settings_in_use;
pub mod spec_merge;
pub mod step;
pub mod targets;
