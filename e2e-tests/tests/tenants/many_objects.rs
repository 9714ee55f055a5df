//! What the server does about one namespace with many objects that have many labels.

use std::time::Duration;

use axum::http::Method;
use futures::{StreamExt, stream};
use serde_json::{Map, Value, json};

use super::support::{MALLORY, SETTINGS, Scene, Tenant, WINDOWS};
use crate::support::eventually::eventually;
use crate::support::process_usage::{memory, peak_memory, processor_time};
use crate::support::webhook_cluster::{addresses, on, service, template, within};

/// How many requests of a tenant run at once.
const PARALLEL: usize = 32;

/// The most labels that an object can have and that are read.
const LABELS: usize = 63;

/// The kinds of workloads, each with the path of its resource and the fields of its spec besides the template.
fn kinds() -> [(&'static str, &'static str, &'static str, Value); 8] {
    let selector = |app: &str| json!({"matchLabels": {"app": app}});
    [
        ("apps/v1", "Deployment", "deployments", json!({"replicas": 0, "selector": selector("web")})),
        (
            "apps/v1",
            "StatefulSet",
            "statefulsets",
            json!({"replicas": 0, "serviceName": "web", "selector": selector("web")}),
        ),
        ("apps/v1", "DaemonSet", "daemonsets", json!({"selector": selector("web")})),
        ("apps/v1", "ReplicaSet", "replicasets", json!({"replicas": 0, "selector": selector("web")})),
        ("v1", "ReplicationController", "replicationcontrollers", json!({"replicas": 0, "selector": {"app": "web"}})),
        ("batch/v1", "Job", "jobs", json!({"suspend": true})),
        ("batch/v1", "CronJob", "cronjobs", json!({"suspend": true, "schedule": "@yearly"})),
        ("v1", "Pod", "pods", json!({})),
    ]
}

/// The label `app: web`, and others with keys and values of this length.
fn labels(length: usize) -> Value {
    let label = |number: usize| (format!("{number:0>length$}"), json!("v".repeat(length)));
    (1..LABELS).map(label).chain([("app".to_owned(), json!("web"))]).collect::<Map<_, _>>().into()
}

impl Tenant<'_> {
    /// Creates the workloads of these numbers, whose Pods have these labels and this spec.
    async fn fills(&self, numbers: std::ops::Range<usize>, kinds: &[usize], labels: &Value, spec: &Value) {
        let all = self::kinds();
        let create = async |number: usize| {
            let (api_version, kind, resource, fields) = &all[kinds[number % kinds.len()]];
            let mut pods = template("web", spec.clone());
            pods["metadata"]["labels"] = labels.clone();
            pods["spec"]["restartPolicy"] = if matches!(*kind, "Job" | "CronJob") { "Never" } else { "Always" }.into();
            let metadata = json!({"name": format!("filling-{number}")});
            let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": fields});
            match *kind {
                "Pod" => {
                    object["metadata"]["labels"] = labels.clone();
                    object["spec"] = pods["spec"].clone();
                }
                "CronJob" => object["spec"]["jobTemplate"] = json!({"spec": {"template": pods}}),
                _ => object["spec"]["template"] = pods,
            }
            let group = if *api_version == "v1" { "api" } else { "apis" };
            let path = format!("/{group}/{api_version}/namespaces/{}/{resource}", self.namespace);
            self.request(Method::POST, &path, &object).await.unwrap();
        };
        stream::iter(numbers.map(create)).buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
    }

    /// Creates a workload with this number, which no other one has, and waits until the server has seen it.
    async fn is_seen(&self, number: usize) {
        let last = number.to_string();
        self.fills(number..number + 1, &[0], &json!({"app": "web", "last": last}), &on("windows")).await;
        let last = service("last", json!({"selector": {"last": last}}));
        eventually("the server to have seen all objects", async || {
            let created = self.scene.create(&self.client, &self.namespace, &last, "?dryRun=All").await.unwrap();
            within(addresses(&created)[0], WINDOWS).then_some(())
        })
        .await;
    }

    /// The processor time of the server for each of many creates of this Service in parallel, without effect.
    async fn costs(&self, service: &Value) -> Duration {
        const CREATES: u32 = 160;
        let pid = self.scene.server.as_ref().unwrap().pid();
        let begin = processor_time(pid);
        let create = async |_| {
            self.scene.create(&self.client, &self.namespace, service, "?dryRun=All").await.unwrap();
        };
        stream::iter((0..CREATES).map(create)).buffer_unordered(PARALLEL).collect::<Vec<()>>().await;
        (processor_time(pid) - begin) / CREATES
    }
}

/// Workloads of all kinds, of which none is evidence, and which all have to be read.
#[tokio::test]
async fn evaluation_with_many_workloads_costs_at_most_ten_ordinary_ones() {
    const MOST: u32 = 10;
    let scene = Scene::start().await;
    let ordinary = scene.tenant("ordinary").await;
    let usual = ordinary.costs(&service("web", json!({}))).await;
    let mallory = scene.tenant(MALLORY).await;
    let long = labels(60);
    let all: Vec<usize> = (0..8).collect();
    let nodes = json!({"nodeSelector": long});
    mallory.fills(0..192, &all, &long, &nodes).await;
    let values: Vec<String> = (0..250).map(|number| format!("v{number}")).collect();
    let required =
        json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]}]});
    let affinity = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}});
    mallory.fills(192..384, &all, &json!({"app": "web", "wide": "no"}), &affinity).await;
    mallory.is_seen(384).await;
    let mut almost = long.clone();
    almost["0"] = json!("nobody");
    let rows = [
        ("one label", json!({"app": "web"})),
        ("all labels", long),
        ("all labels, and one that no workload has", almost),
        ("workloads with long affinity", json!({"wide": "no"})),
    ];
    let mut wrong = Vec::new();
    for (name, selector) in rows {
        let took = mallory.costs(&service("web", json!({"selector": selector}))).await;
        eprintln!("{name}: {took:?}, an ordinary Service {usual:?}");
        if took > MOST * usual {
            wrong.push(format!("{name}: {took:?}, an ordinary Service {usual:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Small objects with many small labels. A server with 384 MiB was killed by 30,800 of them, and again when it started.
#[tokio::test]
async fn memory_of_the_server_grows_by_at_most_three_kibibytes_for_each_small_object() {
    const OBJECTS: usize = 4000;
    const MOST: f64 = 3072.0;
    let mut scene = Scene::start().await;
    let mallory = scene.tenant(MALLORY).await;
    mallory.is_seen(OBJECTS).await;
    let pid = scene.server.as_ref().unwrap().pid();
    let before = memory(pid);
    // ReplicaSets, Jobs and Pods.
    mallory.fills(0..OBJECTS, &[3, 5, 7], &labels(8), &json!({})).await;
    mallory.is_seen(OBJECTS + 1).await;
    let each = (memory(pid) - before) * 1e6 / OBJECTS as f64;
    eprintln!("{each} bytes for each object");
    assert!(each < MOST, "{each} bytes for each object");

    scene.server.take();
    scene.serve(SETTINGS).await;
    let server = scene.server.as_mut().unwrap();
    server.ready().await;
    let peak = peak_memory(server.pid());
    eprintln!("{peak} MB when the server starts, {before} MB before");
    assert!(
        (peak - before) * 1e6 < MOST * OBJECTS as f64 + 64e6,
        "{peak} MB when the server starts, {before} MB before"
    );
}
