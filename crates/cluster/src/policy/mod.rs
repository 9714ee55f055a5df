//! Admission requests and responses, and the look-ups of Kubewarden.

pub mod admission_review;
pub mod host_calls;
pub mod recorded_session;
pub mod wasm_module;
