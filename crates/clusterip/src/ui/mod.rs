//! Serves the map of a cluster to browsers.

mod host;
pub mod map_server;
