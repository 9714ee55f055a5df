//! What the tests stand on.

pub mod control_plane;
pub mod proxy;
