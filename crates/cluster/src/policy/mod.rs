//! Admission requests and responses, and the look-ups of Kubewarden.

pub mod host_calls;
pub mod node_request;
pub mod recorded_session;
pub mod request_file;
pub mod response;
pub mod service_request;
pub mod wasm_module;
