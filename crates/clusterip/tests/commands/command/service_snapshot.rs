//! Snapshots with Services and Service ranges.

use super::{Done, Folder, merged, service_cidr};
use serde_json::{Value, json};

/// Two pools; the cluster's range is 172.21.0.0/16.
pub const SETTINGS: &str = "
services:
  pools:
  - {name: windows, cidrs: [172.21.1.0/29], reserved: 2, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24], reserved: 50, match: {os: linux}}
";

/// The Service `shop/NAME` with this address, merged with `more`.
pub fn service(name: &str, address: &str, more: Value) -> Value {
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "shop", "name": name, "managedFields": [{"manager": "helm"}]},
        "spec": {"clusterIP": address},
    });
    merged(service, more)
}

/// The annotation for an os, to merge into a Service.
pub fn on(os: &str) -> Value {
    json!({"metadata": {"annotations": {"clusterip-policy/os": os}}})
}

/// The same for a Service whose address was set with kubectl.
pub fn by_hand(os: &str) -> Value {
    let fields = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}]);
    json!({"metadata": {"annotations": {"clusterip-policy/os": os}, "managedFields": fields}})
}

/// The Deployment `shop/web` on nodes with Windows, whose Pods have the label `app=web`.
pub fn deployment() -> Value {
    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "web"},
           "spec": {"template": template}})
}

/// The ServiceCIDR of the cluster.
pub fn cluster() -> Value {
    service_cidr("kubernetes", "172.21.0.0/16", json!({}))
}

/// A List in JSON.
pub fn list(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// Audits a snapshot with these objects under `SETTINGS`.
pub fn audit(folder: &Folder, items: Vec<Value>, args: &[&str]) -> Done {
    folder.audit(SETTINGS, &items, args)
}
