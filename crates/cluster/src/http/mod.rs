//! The HTTP servers of the programs.

pub mod connection;
pub mod error_response;
pub mod server;
pub mod status;
mod unread_answers;
