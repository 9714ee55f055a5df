//! The map of a cluster, served to a browser.

mod host;
pub mod server;
