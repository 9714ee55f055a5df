//! Decides which ClusterIP and which external addresses a Kubernetes Service gets, and which pod CIDRs a Node.
//!
//! One way through, top to bottom: [`triage`] says what an admission request asks, [`evidence`] on
//! which nodes the Service's Pods will run, [`pool`] which pool serves those, [`pick`] which of its
//! addresses is free, [`answer`] puts it into words. [`decide`] ties them together; [`validate`] is the
//! same from bytes to bytes. [`external`] decides about a Service's external addresses beside it; [`node`] is
//! the same way for Nodes.
//!
//! # Promises
//! - Pure: the cluster is asked through the port [`cluster::Cluster`] alone. No clock, no randomness,
//!   no log, no memory between calls.
//! - Deterministic: the same request, settings and cluster give the same bytes.
//! - Total: no input, however malformed, panics.

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
