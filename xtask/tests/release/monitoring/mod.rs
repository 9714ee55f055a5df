//! The dashboard and the rules in `deploy/monitoring` query only metrics that `clusterip serve` exposes. To Prometheus,
//! a misspelt metric or label is not an error: the alert just never fires.
//!
//! The exposed metrics are those in docs/metrics.md. A test of the host compares that page with the program.

mod alerts;
mod dashboard;
mod exposed_metrics;
mod queries;
