//! The HTTP servers of the programs.
//!
//! - [`server`] serves within limits, and [`connection`] limits the connections.
//! - `unread_answers` limits the memory for answers that clients do not read.
//! - [`error_response`] is an error response, and [`status`] serves probes and metrics.

pub mod connection;
pub mod error_response;
pub mod server;
pub mod status;
mod unread_answers;
