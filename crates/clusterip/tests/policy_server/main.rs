//! What holds of the policy where policy-server hosts it: which queries it makes and how many, what it
//! answers the audit scanner, and what is left of an answer in monitor mode.
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
