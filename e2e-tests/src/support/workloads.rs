//! Workloads of all kinds, as many as a tenant may create.

use axum::http::Request;
use futures::{StreamExt as _, stream};
use kube::Client;
use serde_json::{Map, Value, json};

use super::move_helpers::message;
use super::webhook_cluster::template;

/// The number of kinds of workloads.
pub const KINDS: usize = 8;
/// The most labels that an object can have and that are read.
const LABELS: usize = 63;
/// How many requests run at once.
const PARALLEL: usize = 32;

/// The kinds of workloads, each with the path of its resource and the fields of its spec besides the template.
fn kinds() -> [(&'static str, &'static str, &'static str, Value); KINDS] {
    let selector = json!({"matchLabels": {"app": "web"}});
    let replicas = json!({"replicas": 0, "selector": selector});
    [
        ("apps/v1", "Deployment", "deployments", replicas.clone()),
        ("apps/v1", "StatefulSet", "statefulsets", json!({"replicas": 0, "serviceName": "web", "selector": selector})),
        ("apps/v1", "DaemonSet", "daemonsets", json!({"selector": selector})),
        ("apps/v1", "ReplicaSet", "replicasets", replicas),
        ("v1", "ReplicationController", "replicationcontrollers", json!({"replicas": 0, "selector": {"app": "web"}})),
        ("batch/v1", "Job", "jobs", json!({"suspend": true})),
        ("batch/v1", "CronJob", "cronjobs", json!({"suspend": true, "schedule": "@yearly"})),
        ("v1", "Pod", "pods", json!({})),
    ]
}

/// The label `app: web`, and others with keys and values of this length.
pub fn labels(length: usize) -> Value {
    let label = |number: usize| (format!("{number:0>length$}"), json!("v".repeat(length)));
    (1..LABELS).map(label).chain([("app".to_owned(), json!("web"))]).collect::<Map<_, _>>().into()
}

/// The manifest of a workload whose Pods have these labels and this spec, and the path of its resource.
fn workload(namespace: &str, number: usize, kind: usize, labels: &Value, spec: &Value) -> (String, Value) {
    let (api_version, kind, resource, fields) = &kinds()[kind];
    let mut pods = template("web", spec.clone());
    pods["metadata"]["labels"] = labels.clone();
    pods["spec"]["restartPolicy"] = if matches!(*kind, "Job" | "CronJob") { "Never" } else { "Always" }.into();
    let metadata = json!({"name": format!("filling-{number}")});
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": fields});
    match *kind {
        "Pod" => {
            object["metadata"]["labels"] = labels.clone();
            object["spec"] = pods["spec"].take();
        }
        "CronJob" => object["spec"]["jobTemplate"] = json!({"spec": {"template": pods}}),
        _ => object["spec"]["template"] = pods,
    }
    let group = if *api_version == "v1" { "api" } else { "apis" };
    (format!("/{group}/{api_version}/namespaces/{namespace}/{resource}"), object)
}

/// Creates the workloads of these numbers, of these kinds in turns, whose Pods have these labels and this spec.
pub async fn fill(
    client: &Client,
    namespace: &str,
    numbers: std::ops::Range<usize>,
    kinds: &[usize],
    labels: &Value,
    spec: &Value,
) {
    let create = async |number: usize| {
        let (path, object) = workload(namespace, number, kinds[number % kinds.len()], labels, spec);
        let request = Request::post(path).header("content-type", "application/json");
        let request = request.body(serde_json::to_vec(&object).unwrap()).unwrap();
        client.request::<Value>(request).await.unwrap_or_else(|error| panic!("{}", message(&error)));
    };
    stream::iter(numbers.map(create)).buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
}

/// Creates 24 workloads of each kind that the selector `app: web` selects. They have 63 long labels and require 63 long
/// labels of nodes, none of which a pool asks for, so a decision has to look at all of them.
pub async fn fill_with_inert_workloads(client: &Client, namespace: &str) {
    let (kinds, long) = ((0..KINDS).collect::<Vec<_>>(), labels(60));
    let spec = json!({"nodeSelector": long});
    fill(client, namespace, 0..24 * KINDS, &kinds, &long, &spec).await;
}
