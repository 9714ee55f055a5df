//! The HTTP servers of the programs.

pub mod connection;
pub mod probes;
pub mod server;
