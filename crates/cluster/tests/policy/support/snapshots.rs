//! Snapshots of a cluster, and look-ups of them.

use std::collections::BTreeSet;

use clusterip_cluster::lookups::complete_objects::CompleteObjects;
use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::snapshot::Snapshot;
use serde_json::{Value, json};

/// A snapshot of these objects.
pub fn snapshot(objects: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for object in objects {
        snapshot.insert(object);
    }
    snapshot
}

/// These objects, to be looked up by the module.
pub fn complete(objects: &[Value]) -> CompleteObjects {
    objects.iter().cloned().collect()
}

/// The answer for these objects.
pub fn ask(objects: &[Value], call: &HostCall) -> Result<Value, String> {
    ask_complete(&complete(objects), call)
}

/// The answer of a cluster.
pub fn ask_complete(objects: &CompleteObjects, call: &HostCall) -> Result<Value, String> {
    let answer = objects.answer(call)?;
    Ok(serde_json::from_slice(&answer).unwrap())
}

/// Field masks with these paths.
pub fn masks(paths: &[&str]) -> Option<BTreeSet<String>> {
    Some(paths.iter().map(|path| (*path).to_owned()).collect())
}

/// The `apiVersion` and the kind of a resource such as `apps/v1/Deployment`.
pub fn split(resource: &str) -> (String, String) {
    let (api_version, kind) = resource.rsplit_once('/').unwrap();
    (api_version.to_owned(), kind.to_owned())
}

/// A list of all objects of a kind such as `apps/v1/Deployment`.
pub fn list_all(resource: &str, field_masks: Option<BTreeSet<String>>) -> HostCall {
    let (api_version, kind) = split(resource);
    HostCall::ListAll { api_version, kind, label_selector: None, field_selector: None, field_masks }
}

/// The same list of one namespace.
pub fn list_of(resource: &str, namespace: &str) -> HostCall {
    let (api_version, kind) = split(resource);
    let namespace = namespace.to_owned();
    HostCall::ListNamespace {
        api_version,
        kind,
        namespace,
        label_selector: None,
        field_selector: None,
        field_masks: None,
    }
}

/// A look-up of one object.
pub fn get(resource: &str, namespace: Option<&str>, name: &str, field_masks: Option<BTreeSet<String>>) -> HostCall {
    let (api_version, kind) = split(resource);
    let (name, namespace) = (name.to_owned(), namespace.map(str::to_owned));
    HostCall::Get { api_version, kind, name, namespace, disable_cache: true, field_masks }
}

/// A Deployment without a spec.
pub fn deployment(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace, "name": name}})
}

/// The Service `shop/NAME` with these ClusterIPs.
pub fn service(name: &str, ips: &[&str]) -> Value {
    let mut spec = json!({"clusterIPs": ips});
    if let Some(first) = ips.first() {
        spec["clusterIP"] = json!(first);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec})
}
