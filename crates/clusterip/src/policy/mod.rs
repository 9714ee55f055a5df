//! The policy module, and what it may ask of its host.

pub mod budget;
pub mod host_calls;
pub mod module;
pub mod node_request;
pub mod request;
pub mod response;
pub mod service_request;
pub mod session;
