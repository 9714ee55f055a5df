//! Evidence of the nodes on which the endpoints of a Service run: every kind of object that can be its source, as the API
//! server stores it. The tests of `clusterip-core` have the order of the sources, and what each field means.

use clusterip_core::decision::Report;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::eventually::MAX_WAIT;
use crate::support::webhook_cluster::{WebhookCluster, address, all, deployment, on, place, service, template};

/// The objects that exist before a Service is applied, and the expected decision.
struct Row {
    /// The name is also part of the name of the namespace.
    name: &'static str,
    /// Annotations and labels of the namespace.
    namespace: Value,
    /// The objects in the namespace.
    objects: Vec<Value>,
    /// The parts of the Service besides name, port and selector.
    service: Value,
    /// The expected pool.
    pool: &'static str,
    /// The expected source of the evidence; `NS` is the namespace.
    source: &'static str,
    /// The expected node labels.
    labels: &'static [(&'static str, &'static str)],
    /// The expected warnings of kubectl.
    warnings: &'static [&'static str],
}

const WINDOWS: &[(&str, &str)] = &[("kubernetes.io/os", "windows")];
const LINUX: &[(&str, &str)] = &[("kubernetes.io/os", "linux")];

impl Row {
    fn new(name: &'static str, objects: Vec<Value>, source: &'static str) -> Self {
        let (namespace, service) = (json!({}), json!({}));
        Self { name, namespace, objects, service, pool: "windows", source, labels: WINDOWS, warnings: &[] }
    }

    fn linux(self) -> Self {
        Self { pool: "linux", labels: LINUX, ..self }
    }
}

/// An object with a Pod template for Services that select `app: web`.
fn workload(api_version: &str, kind: &str, pod_spec: Value) -> Value {
    let mut pod_spec = pod_spec;
    let selector = json!({"matchLabels": {"app": "web"}});
    if kind.ends_with("Job") {
        pod_spec["restartPolicy"] = json!("Never");
    }
    let template = template("web", pod_spec);
    let spec = match kind {
        "StatefulSet" => json!({"serviceName": "web", "selector": selector, "template": template}),
        "ReplicationController" => json!({"selector": {"app": "web"}, "template": template}),
        "Job" => json!({"template": template}),
        "CronJob" => json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}),
        _ => json!({"selector": selector, "template": template}),
    };
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "work"}, "spec": spec})
}

fn pod(name: &str, pod_spec: Value) -> Value {
    let mut pod = template("web", pod_spec);
    pod["apiVersion"] = json!("v1");
    pod["kind"] = json!("Pod");
    pod["metadata"]["name"] = json!(name);
    pod
}

/// A Deployment of this name whose Pods the Service selects.
fn web(name: &str, pod_spec: Value) -> Value {
    let mut deployment = deployment("web", pod_spec);
    deployment["metadata"]["name"] = json!(name);
    deployment
}

fn rows() -> Vec<Row> {
    let annotation = |key: &str, value: &str| json!({"annotations": {key: value}});
    vec![
        Row::new("nothing", vec![], "setting assumeOS").linux(),
        Row::new("deployment", vec![workload("apps/v1", "Deployment", on("windows"))], "Deployment NS/work"),
        Row::new("statefulset", vec![workload("apps/v1", "StatefulSet", on("windows"))], "StatefulSet NS/work"),
        Row::new("daemonset", vec![workload("apps/v1", "DaemonSet", on("windows"))], "DaemonSet NS/work"),
        Row::new("replicaset", vec![workload("apps/v1", "ReplicaSet", on("windows"))], "ReplicaSet NS/work"),
        Row::new(
            "controller",
            vec![workload("v1", "ReplicationController", on("windows"))],
            "ReplicationController NS/work",
        ),
        Row::new("job", vec![workload("batch/v1", "Job", on("windows"))], "Job NS/work"),
        Row::new("cronjob", vec![workload("batch/v1", "CronJob", on("windows"))], "CronJob NS/work"),
        Row::new("pod", vec![pod("a", on("windows"))], "Pod NS/a"),
        Row::new("pod-on-node", vec![pod("a", json!({"nodeName": "evidence-node"}))], "Pod NS/a on Node evidence-node"),
        Row::new(
            "runtime-class",
            vec![web("a", json!({"runtimeClassName": "evidence-windows"}))],
            "Deployment NS/a with RuntimeClass evidence-windows",
        ),
        Row {
            warnings: &[
                "Deployment NS/a needs kubernetes.io/os=windows, Deployment NS/b needs linux: the first by name decides",
            ],
            ..Row::new("disagreement", vec![web("b", on("linux")), web("a", on("windows"))], "Deployment NS/a")
        },
        Row {
            namespace: annotation("scheduler.alpha.kubernetes.io/node-selector", "disk=fast,kubernetes.io/os=windows"),
            ..Row::new("namespace-selector", vec![], "Namespace NS")
        },
        Row {
            namespace: json!({"labels": {"tier": "gold"}}),
            pool: "labelled",
            labels: &[],
            ..Row::new("namespace-labels", vec![], "labels of namespace NS")
        },
        Row {
            service: json!({"metadata": {"labels": {"tier": "gold"}}}),
            pool: "chosen",
            labels: &[],
            ..Row::new("service-labels", vec![], "labels of the Service")
        },
    ]
}

/// Pool, evidence, the place of the address, and warnings.
type Outcome = (String, Report, String, Vec<String>);

#[tokio::test]
async fn each_source_of_evidence_is_used() {
    let cluster = WebhookCluster::shared().await;
    let client = cluster.plane.client();
    let node = json!({"metadata": {"name": "evidence-node", "labels": {"kubernetes.io/os": "windows"}}});
    let node: Node = serde_json::from_value(node).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    let scheduling = json!({"nodeSelector": {"kubernetes.io/os": "windows"}});
    let class = json!({"metadata": {"name": "evidence-windows"}, "handler": "x", "scheduling": scheduling});
    let class: RuntimeClass = serde_json::from_value(class).unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &class).await.unwrap();

    let mut objects: Vec<Value> = Vec::new();
    for row in rows() {
        let namespace = format!("evidence-{}", row.name);
        assert_eq!(cluster.plane.namespace(&namespace).await, namespace);
        cluster.mark_namespace(&namespace, &row.namespace).await;
        objects.extend(row.objects.into_iter().map(|mut object| {
            object["metadata"]["namespace"] = namespace.clone().into();
            object
        }));
    }
    cluster.plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).await;

    let (mut seen, mut expected) = (Vec::new(), Vec::new());
    for row in rows() {
        let namespace = format!("evidence-{}", row.name);
        let text = |text: &str| text.replace("NS", &namespace);
        let labels = row.labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mixed = row.warnings.iter().filter(|warning| warning.ends_with("decides")).map(|warning| text(warning));
        let report = Report { source: text(row.source), labels: labels.collect(), mixed: mixed.collect() };
        let mut web = service("web", row.service.get("spec").cloned().unwrap_or(json!({})));
        if let Some(metadata) = row.service["metadata"].as_object() {
            web["metadata"].as_object_mut().unwrap().extend(metadata.clone());
        }
        knows(&cluster, &namespace, &web, &report).await;
        let applied = cluster.plane.kubectl_with(&["apply", "-f", "-"], &all(&namespace, [web])).await;
        let warnings = applied.stderr.lines().map(str::to_owned).collect();
        applied.ok();
        let audit = cluster.decided(&namespace, "web").expect("an answer");
        let place = place(address(&cluster.get(&namespace, "web").await)).to_owned();
        let outcome: Outcome = (audit.pool.unwrap_or_default(), audit.evidence.unwrap_or_default(), place, warnings);
        seen.push((row.name, outcome));
        let warnings = row.warnings.iter().map(|warning| format!("Warning: {}", text(warning))).collect();
        expected.push((row.name, (row.pool.to_owned(), report, row.pool.to_owned(), warnings)));
    }
    assert_eq!(seen, expected);
}

/// Waits until the watches of the server have brought everything that the decision needs. If the expected evidence
/// never comes, the assertion after this call shows the actual decision.
async fn knows(cluster: &WebhookCluster, namespace: &str, service: &Value, expected: &Report) {
    let deadline = tokio::time::Instant::now() + MAX_WAIT / 10;
    while tokio::time::Instant::now() < deadline {
        cluster.dry_run(namespace, service).await.unwrap();
        let found = cluster.decided(namespace, "web").and_then(|audit| audit.evidence).unwrap_or_default();
        if found == *expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
