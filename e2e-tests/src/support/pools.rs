//! Objects of the API `clusterip-policy.io`.

use serde_json::{Value, json};

/// An object of this kind, such as `ServicePool`.
pub fn pool(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// A pool of this kind with a fence, for the Services of one namespace.
pub fn fenced_pool(kind: &str, name: &str, cidrs: &[&str], namespace: &str) -> Value {
    pool(kind, name, json!({"cidrs": cidrs, "fence": "Deny", "match": {"namespaces": [namespace]}}))
}

/// The Service pools of a settings document, as a list for `kubectl apply`.
pub fn service_pools(settings: &str) -> String {
    let settings: Value = clusterip_cluster::yaml::single(settings).unwrap();
    let pools = settings["services"]["pools"].as_array().unwrap();
    let objects = pools.iter().enumerate().map(|(nth, entry)| {
        let mut spec = entry.clone();
        let name = spec.as_object_mut().unwrap().remove("name").unwrap();
        // The order of the list.
        spec["priority"] = json!(pools.len() - nth);
        pool("ServicePool", name.as_str().unwrap(), spec)
    });
    json!({"apiVersion": "v1", "kind": "List", "items": objects.collect::<Vec<_>>()}).to_string()
}
