//! Calls the embedded module as a plain waPC host does: bytes in, bytes out.

use std::sync::{Arc, LazyLock};

use clusterip::policy::host_calls::{HostCall, HostCalls};
use clusterip::policy::module::EMBEDDED;
use wapc::WapcHost;
use wasmtime_provider::wasmtime::{Engine, Module};
use wasmtime_provider::{WasmtimeEngineProviderBuilder, WasmtimeEngineProviderPre};

static INSTANCES: LazyLock<WasmtimeEngineProviderPre> = LazyLock::new(|| {
    let engine = Engine::default();
    let module = Module::new(&engine, EMBEDDED).unwrap();
    WasmtimeEngineProviderBuilder::new().engine(engine).module(module).build_pre().unwrap()
});

/// Calls an operation of a fresh instance. An error is a trap, or an error of the guest.
pub fn call(operation: &str, payload: &[u8], calls: Arc<dyn HostCalls>) -> Result<Vec<u8>, String> {
    let callback = move |_: u64, binding: &str, namespace: &str, operation: &str, payload: &[u8]| {
        let call = HostCall::read(binding, namespace, operation, payload)?;
        calls.answer(&call).map_err(Into::into)
    };
    let engine = INSTANCES.rehydrate(None).unwrap();
    let host = WapcHost::new(Box::new(engine), Some(Box::new(callback))).unwrap();
    host.call(operation, payload).map_err(|error| error.to_string())
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
