//! Objects, and the states of compiled objects.

use clusterip_api::{Compilation, LabelledRanges, ObjectKey, Objects};
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

/// Objects in a cluster with these ranges, and with ServiceCIDR objects that have these values of the label `team`.
pub fn in_cluster(objects: Vec<Value>, service_cidrs: &[(&str, &str)], cluster_ranges: &[&str]) -> Objects {
    let labelled = |(team, cidr): &(&str, &str)| LabelledRanges {
        labels: [("team".to_owned(), (*team).to_owned())].into(),
        cidrs: vec![(*cidr).to_owned()],
    };
    Objects {
        objects,
        service_cidrs: service_cidrs.iter().map(labelled).collect(),
        cluster_ranges: cluster_ranges.iter().map(|&range| range.to_owned()).collect(),
    }
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
