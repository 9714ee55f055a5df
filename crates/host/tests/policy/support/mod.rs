//! Calls operations of the embedded module: bytes in, bytes out. And requests to call it with, and guests to use
//! instead of it.

pub mod snapshots;

use std::sync::{Arc, LazyLock};

use clusterip_core::answer::Answer;
use clusterip_host::policy::host_calls::{HostCall, HostCalls};
use clusterip_host::policy::module::{CompiledModule, EMBEDDED, Module};
use serde_json::{Value, json};

/// The embedded module.
pub static MODULE: LazyLock<Module> = LazyLock::new(|| Module::new(EMBEDDED).unwrap());

/// Calls an operation of a fresh instance. An error is a trap, or an error of the guest.
pub fn call(operation: &str, payload: &[u8], calls: Arc<dyn HostCalls>) -> Result<Vec<u8>, String> {
    MODULE.call(operation, payload.to_vec(), Some(calls)).map_err(|error| error.to_string())
}

/// A guest of `crates/guests`.
#[expect(unsafe_code, reason = "a build script has compiled the guests")]
pub fn guest(name: &str) -> CompiledModule {
    let code = guests::code(name).unwrap_or_else(|| panic!("{name:?} is no guest"));
    // SAFETY: the build script of `guests` got this code from `Engine::precompile_module`.
    unsafe { CompiledModule::from_build_script(code) }
}

/// A host without any objects.
pub struct NoCluster;

impl HostCalls for NoCluster {
    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        match call {
            HostCall::Get { api_version, kind, name, .. } => {
                Err(format!("Cannot find {api_version}/{kind} named '{name}' inside of namespace 'None'"))
            }
            _ => Ok(br#"{"items":[]}"#.to_vec()),
        }
    }
}

/// The request that creates `object`.
pub fn request(object: Value) -> Value {
    json!({
        "uid": "00000000-0000-4000-8000-000000000001",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "name": "web",
        "namespace": "shop",
        "operation": "CREATE",
        "userInfo": {"username": "alice"},
        "object": object,
    })
}

/// The Service `shop/web`.
pub fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}

/// The module's answer to the bytes of a payload.
pub fn answer(payload: &[u8]) -> Answer {
    serde_json::from_slice(&call("validate", payload, Arc::new(NoCluster)).unwrap()).unwrap()
}

/// The payload of `validate` for this request, with default settings.
pub fn payload(request: Value) -> Vec<u8> {
    serde_json::to_vec(&json!({"request": request, "settings": {}})).unwrap()
}

/// Nested lists.
pub fn nested(levels: usize) -> String {
    format!("{}{}", "[".repeat(levels), "]".repeat(levels))
}

/// The request that creates the Service `shop/web`, with `value` at `pointer`.
pub fn request_with(pointer: &str, value: Value) -> Value {
    let mut request = request(service());
    request["oldObject"] = Value::Null;
    *request.pointer_mut(pointer).unwrap() = value;
    request
}
