//! Watches the objects of a cluster that decisions are made from.

pub mod api_server_lists;
pub mod control_plane_services;
pub mod partial_object;
pub mod stores;
