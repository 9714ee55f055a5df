//! What can be measured from outside (Prometheus).

/// The metrics.
#[derive(Default)]
pub struct Metrics {}
