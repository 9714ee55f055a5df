//! Objects, and the states of compiled objects.

use clusterip_api::{Compilation, ObjectKey};
use serde_json::{Value, json};

pub fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "clusterip-policy.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "generation": 1}, "spec": spec,
    })
}

pub fn pool(name: &str, spec: Value) -> Value {
    object("ServicePool", name, spec)
}

/// An object whose version in use is another one.
pub fn edited(mut object: Value, in_use: Value) -> Value {
    object["status"] = json!({"inUse": in_use});
    object
}

/// An object that is in use as it is.
pub fn ready(mut object: Value) -> Value {
    object["status"] = json!({"observedGeneration": 1, "conditions": [{"type": "Ready", "status": "True"}]});
    object
}

/// The state of each object: the reason and the message.
pub fn states(compilation: &Compilation) -> Vec<String> {
    let state = |(key, state): (&ObjectKey, &clusterip_api::ObjectState)| {
        format!("{key}: {}: {}", state.reason.as_str(), state.message)
    };
    compilation.states.iter().map(state).collect()
}
