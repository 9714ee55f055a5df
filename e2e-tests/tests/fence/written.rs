//! The fence with the pools written into it, by `clusterip settings`: as files of the API server, which nobody can
//! delete through the API, and as policies for clusters without the custom resources.

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{create, dry_run, fenced_pool, fences, outcome, send, service_at, tenant, until_refused};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::move_helpers::path;
use crate::support::service_webhook_rules::{assert_calls, call};
use crate::support::webhook_cluster::service;

/// Pools of another team. The first addresses of the Service range are those that the API server needs itself.
fn pools() -> String {
    let pools = [
        fenced_pool("ServicePool", "first", &["172.21.0.0/28"], "first-team"),
        fenced_pool("ServicePool", "blue", &["172.21.8.0/22"], "another-team"),
    ];
    json!({"apiVersion": "v1", "kind": "List", "items": pools}).to_string()
}

/// Writes the policies of the pools, in this form, into a file of a folder.
async fn written(folder: &std::path::Path, form: &str) -> std::path::PathBuf {
    let (given, file) = (folder.join("pools"), folder.join("fences.yaml"));
    std::fs::write(&given, pools()).unwrap();
    std::fs::write(&file, fences(&given, form).await.ok()).unwrap();
    file
}

#[tokio::test]
async fn api_server_starts_with_the_files_and_nobody_can_delete_them() {
    if !ControlPlane::shared().await.reads_policies_from_files() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), "static-admission").await;
    let policies = Some(folder.path().to_owned());
    let plane = ControlPlane::start(Options { audit: false, controller_manager: true, policies, ..Options::default() });
    // It has written its own objects although the fence contains the address.
    let admin = plane.client();
    let kubernetes = eventually("the Service of the API server", async || {
        send(&admin, Method::GET, &path("default", "kubernetes"), &Value::Null).await.ok()
    })
    .await;
    assert_eq!(kubernetes["spec"]["clusterIP"], "172.21.0.1");
    let (namespace, mallory) = tenant(&plane, "mallory").await;
    let fenced = service_at("web", "172.21.8.7");
    assert_eq!(outcome(dry_run(&mallory, &namespace, &fenced).await), "refused");
    assert_eq!(outcome(dry_run(&admin, "default", &service_at("web", "172.21.0.9")).await), "refused");
    assert_eq!(outcome(create(&mallory, &namespace, &service_at("other", "172.21.0.200")).await), "allowed");

    // The API does not show the policies, and refuses their names.
    let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
    let all = send(&admin, Method::GET, policies, &Value::Null).await.unwrap();
    let names: Vec<_> = all["items"].as_array().unwrap().iter().map(|it| &it["metadata"]["name"]).collect();
    assert!(!names.iter().any(|name| name.as_str().unwrap().contains("clusterip-policy")), "{names:?}");
    let name = "blue.service-fence.clusterip-policy.static.k8s.io";
    let deleted = send(&admin, Method::DELETE, &format!("{policies}/{name}"), &Value::Null).await.unwrap_err();
    assert!(deleted.contains("not found"), "{deleted}");
    let applied = plane.kubectl(&["apply", "--filename", folder.path().join("fences.yaml").to_str().unwrap()]).await;
    assert!(applied.stderr.contains("names ending with \".static.k8s.io\" are reserved"), "{}", applied.stderr);
    assert_eq!(outcome(dry_run(&mallory, &namespace, &fenced).await), "refused");

    // An edited file takes effect without a restart.
    std::fs::rename(folder.path().join("fences.yaml"), folder.path().join("fences.txt")).unwrap();
    eventually("the file to be gone", async || {
        (outcome(dry_run(&mallory, &namespace, &fenced).await) == "allowed").then_some(())
    })
    .await;
}

#[tokio::test]
async fn policies_with_their_pools_need_no_custom_resources() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "admission").await;
    plane.kubectl(&["apply", "--filename", file.to_str().unwrap()]).await.ok();
    let (namespace, mallory) = tenant(&plane, "mallory").await;
    until_refused(&mallory, &namespace, &service_at("web", "172.21.8.7")).await;
    let owner = plane.namespace("another-team").await;
    let admin = plane.client();
    let row = |name: &str, outcome: String, expected| call(name, outcome, expected);
    let dry = async |namespace: &str, service: &Value| outcome(dry_run(&admin, namespace, service).await);
    assert_calls(vec![
        row("a fenced address", dry(&namespace, &service_at("web", "172.21.8.7")).await, "refused"),
        row("by its team", dry(&owner, &service_at("web", "172.21.8.7")).await, "allowed"),
        row("another address", dry(&namespace, &service_at("web", "172.21.12.7")).await, "allowed"),
        row("headless", dry(&namespace, &service("web", json!({"clusterIP": "None"}))).await, "allowed"),
    ]);
}
