//! Serves the map of a cluster to browsers.

mod host_header;
pub mod map_server;
