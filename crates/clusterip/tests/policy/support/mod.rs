//! Calls operations of the embedded module: bytes in, bytes out.

use std::sync::{Arc, LazyLock};

use clusterip::policy::host_calls::{HostCall, HostCalls};
use clusterip::policy::module::{EMBEDDED, Module};

static MODULE: LazyLock<Module> = LazyLock::new(|| Module::new(EMBEDDED).unwrap());

/// Calls an operation of a fresh instance. An error is a trap, or an error of the guest.
pub fn call(operation: &str, payload: &[u8], calls: Arc<dyn HostCalls>) -> Result<Vec<u8>, String> {
    MODULE.call(operation, payload.to_vec(), Some(calls)).map_err(|error| error.to_string())
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
