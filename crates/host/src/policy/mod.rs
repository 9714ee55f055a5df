//! The policy module, its requests and answers, and the host calls that it may make.

pub mod budget;
mod compiled_module;
mod engine_config;
pub mod host_calls;
pub mod module;
pub mod node_request;
pub mod recorded_lookups;
pub mod recorded_session;
pub mod request_file;
pub mod response;
pub mod service_request;
mod wapc;
pub mod wasm_module;
