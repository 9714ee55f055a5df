//! Calls operations of the module and of the core: bytes in, bytes out. And requests to call them with.

pub mod random;
pub mod snapshots;

use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::policy::wasm_module::{Limits, WasmModule};
use clusterip_cluster::yaml;
use clusterip_policy::kubewarden_cluster::KubewardenCluster;
use serde_json::{Value, json};

/// The module that `make policy.wasm` builds from this tree.
pub static MODULE: LazyLock<WasmModule> = LazyLock::new(|| {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policy.wasm");
    WasmModule::load(&file, Limits::default()).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
});

/// Calls an operation of a fresh instance. An error is a trap, or an error of the module.
pub fn call(operation: &str, payload: &[u8], calls: Arc<dyn HostCalls>) -> Result<Vec<u8>, String> {
    MODULE.call(operation, payload, Some(calls)).map_err(|error| error.to_string())
}

/// The answer of the core to the bytes of a payload, without the module around it. The look-ups are the same.
pub fn answer_of_core(payload: &[u8], calls: &dyn HostCalls) -> Vec<u8> {
    let cluster = KubewardenCluster::new(|operation: &str, request: &[u8]| {
        let call = HostCall::read("kubewarden", "kubernetes", operation, request).map_err(|error| error.to_string())?;
        calls.answer(&call)
    });
    serde_json::to_vec(&clusterip_core::validate(payload, &cluster)).unwrap()
}

/// What answers the payload of a request.
pub type Shell = fn(&[u8], Arc<dyn HostCalls>) -> Vec<u8>;

pub const MODULE_SHELL: Shell = |payload, calls| call("validate", payload, calls).unwrap();
pub const CORE_SHELL: Shell = |payload, calls| answer_of_core(payload, calls.as_ref());
/// Both shells, with their names.
pub const SHELLS: [(&str, Shell); 2] = [("module", MODULE_SHELL), ("core", CORE_SHELL)];

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

/// The documents of a file of this repository.
pub fn documents(file: &str) -> Vec<Value> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    yaml::documents(&text).map(|document| document.unwrap().to_value()).collect()
}

pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|item| item.as_str().unwrap().to_owned()).collect()
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

/// The payload of `validate` for this request, with default settings.
pub fn payload(request: Value) -> Vec<u8> {
    serde_json::to_vec(&json!({"request": request, "settings": {}})).unwrap()
}
