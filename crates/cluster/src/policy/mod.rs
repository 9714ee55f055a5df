//! Admission requests and responses, and the look-ups of Kubewarden.

pub mod host_calls;
pub mod recorded_session;
pub mod request_file;
pub mod response;
pub mod review_fields;
pub mod wasm_module;
