//! The policy in policy-server: its queries and their number, its answers to the audit scanner, and the parts of an
//! answer that remain in monitor mode.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod audit;
mod calls;
#[path = "../../benches/figures/conflicts.rs"]
#[allow(dead_code, reason = "half of it prints figures")]
mod conflicts;
mod lookups;
mod monitor;
mod picking;
mod recorded;
mod shapes;
mod support;
