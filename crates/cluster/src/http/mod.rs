//! The HTTP servers of the programs.

pub mod connection;
pub mod server;
pub mod status;
