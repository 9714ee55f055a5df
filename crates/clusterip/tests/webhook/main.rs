//! The webhook server without a cluster: which requests it accepts and refuses, its time limits, its certificates, and
//! its answers if the policy does not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod certificates;
mod client_certificates;
mod failing_reviews;
mod http2_streams;
mod large_reviews;
mod namespaces;
mod node_review;
mod on_error;
mod peer_limits;
mod repeated_reviews;
mod reservations;
mod reviews;
mod serving;
mod slow_clients;
mod support;
mod unvalidated_requests;
