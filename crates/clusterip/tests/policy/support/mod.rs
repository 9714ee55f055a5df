//! Calls operations of the embedded module: bytes in, bytes out. And guests to use instead of it.

use std::sync::{Arc, LazyLock};

use clusterip::policy::host_calls::{HostCall, HostCalls};
use clusterip::policy::module::{CompiledModule, EMBEDDED, Module};

static MODULE: LazyLock<Module> = LazyLock::new(|| Module::new(EMBEDDED).unwrap());

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
