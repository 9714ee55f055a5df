//! The policy in policy-server: its queries and their number, its answers to the audit scanner, and the parts of an
//! answer that remain in monitor mode.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod audit_scanner;
mod host_call_counts;
mod monitor_mode;
mod query_shapes;
mod recorded_sessions;
mod support;
