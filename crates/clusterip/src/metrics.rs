//! What can be measured from outside (Prometheus).
