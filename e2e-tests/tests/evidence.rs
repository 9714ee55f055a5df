//! Evidence of the nodes on which the endpoints of a Service run: every kind of object that can be its source, as the API
//! server stores it. The tests of `clusterip-core` have the order of the sources, and what each field means.

use clusterip_core::decision::Report;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::eventually::MAX_WAIT;
use crate::support::webhook_cluster::{WebhookCluster, address, on, place, service, template};

/// The objects that exist before a Service is applied, and the expected source of the evidence for Windows.
struct Row {
    /// The name is also part of the name of the namespace.
    name: &'static str,
    objects: Vec<Value>,
    /// `NS` is the namespace.
    source: &'static str,
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

fn rows() -> Vec<Row> {
    let row = |name, object, source| Row { name, objects: vec![object], source };
    let of = |version: &str, kind: &str| workload(version, kind, on("windows"));
    let class = json!({"runtimeClassName": "evidence-windows"});
    vec![
        row("deployment", of("apps/v1", "Deployment"), "Deployment NS/work"),
        row("statefulset", of("apps/v1", "StatefulSet"), "StatefulSet NS/work"),
        row("daemonset", of("apps/v1", "DaemonSet"), "DaemonSet NS/work"),
        row("replicaset", of("apps/v1", "ReplicaSet"), "ReplicaSet NS/work"),
        row("controller", of("v1", "ReplicationController"), "ReplicationController NS/work"),
        row("job", of("batch/v1", "Job"), "Job NS/work"),
        row("cronjob", of("batch/v1", "CronJob"), "CronJob NS/work"),
        row("pod", pod("a", on("windows")), "Pod NS/a"),
        row("pod-on-node", pod("a", json!({"nodeName": "evidence-node"})), "Pod NS/a on Node evidence-node"),
        row(
            "runtime-class",
            workload("apps/v1", "Deployment", class),
            "Deployment NS/work with RuntimeClass evidence-windows",
        ),
        Row { name: "namespace", objects: Vec::new(), source: "Namespace NS" },
    ]
}

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
        objects.extend(row.objects.into_iter().map(|mut object| {
            object["metadata"]["namespace"] = namespace.clone().into();
            object
        }));
    }
    let selector = json!({"annotations": {"scheduler.alpha.kubernetes.io/node-selector": "kubernetes.io/os=windows"}});
    cluster.mark_namespace("evidence-namespace", &selector).await;
    cluster.plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).await;

    let (mut seen, mut expected) = (Vec::new(), Vec::new());
    for row in rows() {
        let namespace = format!("evidence-{}", row.name);
        let labels = [("kubernetes.io/os".to_owned(), "windows".to_owned())].into();
        let report = Report { source: row.source.replace("NS", &namespace), labels, mixed: Vec::new() };
        let web = service("web", json!({}));
        knows(&cluster, &namespace, &web, &report).await;
        let made = cluster.create(&namespace, &web).await.unwrap();
        let audit = cluster.decided(&namespace, "web").expect("an answer");
        seen.push((row.name, audit.evidence.unwrap_or_default(), place(address(&made))));
        expected.push((row.name, report, "windows"));
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
