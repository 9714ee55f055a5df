//! The HTTP servers of the programs.
//!
//! - [`server`] serves within limits, and [`connection`] limits the connections.
//! - [`refusal`] is an error response, and [`status`] serves probes and metrics.

pub mod connection;
pub mod refusal;
pub mod server;
pub mod status;
