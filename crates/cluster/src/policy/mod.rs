//! Runs the module as Kubewarden does, with host calls, live or of a recorded session.

pub mod host_calls;
pub mod recorded_session;
pub mod wasm_module;
