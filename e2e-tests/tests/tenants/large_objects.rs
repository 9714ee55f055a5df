//! Objects of the maximum size that the API server accepts.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{SETTINGS, Scene};
use crate::support::move_helpers::path;
use crate::support::process_usage::{memory, peak_memory};
use crate::support::webhook_cluster::{annotated, deployment};

/// An update whose review is larger than the server reads. With `failurePolicy: Ignore` it would pass if the server did
/// not answer.
#[tokio::test]
async fn request_too_large_to_review_gets_no_address_of_another_pool() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant("bulky").await;
    // JSON needs six bytes for each of these characters.
    let filling = json!({"example.com/filling": "\u{1}".repeat(261_000)});
    let ports: Vec<Value> = (1..=2000).map(|port| json!({"name": format!("port-{port:050}"), "port": port})).collect();
    let alias = json!({"type": "ExternalName", "externalName": "example.com", "ports": ports});
    mallory.creates(&annotated("bulky", filling, alias)).await;
    let takes = json!({"spec": {"type": "ClusterIP", "clusterIP": "172.21.8.77"}});
    let refused = mallory.request(Method::PATCH, &path(&mallory.namespace, "bulky"), &takes).await.unwrap_err();
    assert!(refused.contains("could not decide: the body is larger than 3145728 bytes"), "{refused}");
}

/// Workloads of the maximum size that the API server accepts, listed by a starting server, whose container has 384 MiB.
#[tokio::test]
async fn large_workloads_do_not_fill_the_memory_of_a_starting_server() {
    const MOST: f64 = 300.0;
    let mut scene = Scene::on_its_own();
    let mallory = scene.tenant("large").await;
    for nth in 0..40 {
        let mut large = deployment(&format!("large-{nth}"), json!({}));
        large["spec"]["replicas"] = 0.into();
        // In the JSON of the API server, the bracket has six bytes.
        let args = if nth % 2 == 0 { vec![String::new(); 690_000] } else { vec!["<".repeat(1_400_000)] };
        large["spec"]["template"]["spec"]["containers"][0]["args"] = args.into();
        let path = format!("/apis/apps/v1/namespaces/{}/deployments", mallory.namespace);
        mallory.request(Method::POST, &path, &large).await.unwrap();
    }
    scene.install().await;
    scene.serve(SETTINGS).await;
    let server = scene.server.as_mut().unwrap();
    server.ready().await;
    let peak = peak_memory(server.pid());
    assert!(peak < MOST, "{peak} MB");
}

/// Each kind that the server watches sends it events of the maximum size, and keeps no buffer for them.
#[tokio::test]
async fn large_events_leave_little_memory() {
    const MOST: f64 = 60.0;
    let scene = Scene::start().await;
    let mallory = scene.tenant("events").await;
    let pid = scene.server.as_ref().unwrap().pid();
    let before = memory(pid);
    let pods = deployment("large", json!({}))["spec"]["template"].take();
    let never = json!({"replicas": 0, "selector": {"matchLabels": pods["metadata"]["labels"]}, "template": pods});
    let mut job = pods.clone();
    job["spec"]["restartPolicy"] = "Never".into();
    let suspended = json!({"suspend": true, "template": job});
    let kinds = [
        ("apps/v1", "Deployment", never.clone()),
        ("apps/v1", "ReplicaSet", never.clone()),
        ("apps/v1", "StatefulSet", never.clone()),
        ("apps/v1", "DaemonSet", json!({"selector": never["selector"], "template": pods})),
        ("batch/v1", "Job", suspended.clone()),
        ("batch/v1", "CronJob", json!({"suspend": true, "schedule": "0 0 1 1 *", "jobTemplate": {"spec": suspended}})),
    ];
    for (api_version, kind, spec) in kinds {
        // In the JSON of the API server, the bracket has six bytes.
        let annotations = json!({"example.com/filling": "<".repeat(200_000)});
        let mut large = json!({"apiVersion": api_version, "kind": kind, "spec": spec});
        large["metadata"] = json!({"name": "large", "annotations": annotations});
        for path in ["/spec/template", "/spec/jobTemplate/spec/template"] {
            if let Some(template) = large.pointer_mut(path) {
                template["spec"]["containers"][0]["args"] = json!(["<".repeat(1_100_000)]);
            }
        }
        let plural = format!("{}s", kind.to_lowercase());
        let path = format!("/apis/{api_version}/namespaces/{}/{plural}", mallory.namespace);
        mallory.request(Method::POST, &path, &large).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let left = memory(pid) - before;
    assert!(left < MOST, "{left} MB, of {} MB at most", peak_memory(pid));
}
