//! The webhook server, without a cluster: what it takes and refuses, who it does not wait for, and which
//! certificate it shows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod bad_input;
mod certificates;
mod client_certificates;
mod faults;
mod peers;
mod serving;
mod slow_clients;
mod support;
