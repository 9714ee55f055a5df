//! Requests, objects, and the policy with a cluster behind it.

use std::sync::{Arc, RwLock};

use clusterip_cluster::lookups::complete_objects::CompleteObjects;
use clusterip_cluster::policy::host_calls::{HostCall, HostCalls};
use clusterip_cluster::policy::recorded_session::{Exchange, Recorder};
use clusterip_core::Response;
use clusterip_policy::kubewarden_cluster::KubewardenCluster;
use serde_json::{Value, json};

pub fn snapshot(objects: impl IntoIterator<Item = Value>) -> Arc<RwLock<CompleteObjects>> {
    Arc::new(RwLock::new(objects.into_iter().collect()))
}

/// The answer of the policy, and its look-ups. The core answers without the interpreter, because these tests make
/// thousands of requests, and `tests/policy` proves that the module gives the same bytes after the same look-ups.
pub fn evaluate(
    request: &Value,
    settings: &Value,
    cluster: &Arc<RwLock<CompleteObjects>>,
) -> (Response, Vec<Exchange>) {
    let recorder = Recorder::new(Arc::new(cluster.read().unwrap().clone()));
    let cluster = KubewardenCluster::new(|operation: &str, request: &[u8]| {
        let call = HostCall::read("kubewarden", "kubernetes", operation, request).map_err(|error| error.to_string())?;
        recorder.answer(&call)
    });
    let payload = json!({"request": request, "settings": settings}).to_string();
    let answer = clusterip_core::validate(payload.as_bytes(), &cluster);
    (answer, recorder.exchanges())
}

/// The request to create `object`, as an API server sends it.
pub fn create(object: &Value) -> Value {
    json!({
        "uid": "b8b0a0c1-3d5e-4b7f-9a51-0c8f4f2d6e11",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "name": object["metadata"]["name"],
        "namespace": object["metadata"]["namespace"],
        "operation": "CREATE",
        "userInfo": {"username": "alice"},
        "object": object,
    })
}

/// The Service `shop/web`, which selects the Pods of [`workload`].
pub fn service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP"}], "type": "ClusterIP"},
    })
}

/// A workload `shop/web` whose Pods need nodes with this operating system.
pub fn workload(api_version: &str, kind: &str, os: &str) -> Value {
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": {"kubernetes.io/os": os}}});
    let spec = match kind {
        "CronJob" => json!({"jobTemplate": {"spec": {"template": template}}}),
        _ => json!({"template": template}),
    };
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
}

/// A call as text: `list apps/v1/Deployment`, `get v1/Node win-1`.
pub fn words(call: &HostCall) -> String {
    match call {
        HostCall::ListAll { api_version, kind, .. } => format!("list {api_version}/{kind}"),
        HostCall::ListNamespace { api_version, kind, namespace, .. } => {
            format!("list {api_version}/{kind} in {namespace}")
        }
        HostCall::Get { api_version, kind, name, .. } => format!("get {api_version}/{kind} {name}"),
    }
}
