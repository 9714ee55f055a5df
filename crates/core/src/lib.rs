//! Decides which ClusterIP and which external addresses a Kubernetes Service gets, and which pod CIDRs a Node.
//!
//! A Service goes through these modules in order: [`triage`] determines what an admission request needs, [`evidence`]
//! on which nodes the Service's Pods will run, [`pool`] which pool serves those nodes, [`pick`] a free address of that
//! pool, and [`answer`] builds the response. [`decide`] calls them; [`validate`] does the same from bytes to bytes.
//! [`external`] decides about the external addresses of the Service, and [`node`] decides about Nodes.
//!
//! # Promises
//!
//! # Promises
//! - Pure: the cluster is read through the port [`cluster::Cluster`] only. There is no clock, no randomness, no log and
//!   no memory between calls.
//! - Deterministic: the same request, settings and cluster give the same bytes.
//! - Total: no input panics, however malformed.

pub mod address;
pub mod annotations;
pub mod answer;
pub mod cluster;
pub mod decide;
pub mod denial;
pub mod evidence;
pub mod external;
pub mod families;
pub mod json;
pub mod label_selector;
pub mod namespace;
pub mod node;
pub mod pick;
pub mod pod_spec;
pub mod pool;
pub mod request;
pub mod service;
pub mod settings;
pub mod triage;
pub mod validate;
pub mod workload;

pub use decide::decide;
pub use validate::{validate, validate_settings};
