//! The Kubewarden policy: waPC entry points around [`clusterip_core`], which answer its look-ups with Kubewarden's host
//! calls.

pub mod kubewarden_cluster;
pub mod list;

/// The entry points that a waPC host calls. They exist in the Wasm module only: a native build has no host.
#[cfg(target_arch = "wasm32")]
mod entry_points {
    use wapc_guest::{CallResult, host_call, register_function};

    use crate::kubewarden_cluster::KubewardenCluster;

    /// The host calls this once for each instance, before any other function.
    #[expect(unsafe_code, reason = "the host finds the function by its name")]
    #[unsafe(no_mangle)]
    pub extern "C" fn wapc_init() {
        register_function("validate", validate);
        register_function("validate_settings", validate_settings);
        register_function("protocol_version", protocol_version);
    }

    fn validate(payload: &[u8]) -> CallResult {
        let cluster = KubewardenCluster::new(|operation: &str, request: &[u8]| {
            host_call("kubewarden", "kubernetes", operation, request).map_err(|error| error.to_string())
        });
        let answer = clusterip_core::validate(payload, &cluster);
        Ok(serde_json::to_vec(&answer)?)
    }

    /// The version of Kubewarden's protocol, in JSON.
    fn protocol_version(_: &[u8]) -> CallResult {
        Ok(br#""v1""#.to_vec())
    }

    fn validate_settings(payload: &[u8]) -> CallResult {
        Ok(serde_json::to_vec(&clusterip_core::validate_settings(payload))?)
    }
}
