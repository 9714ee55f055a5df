//! Services of a tenant that lie in a pool which is not for them, and that the policy can't place or nothing can move.

use std::collections::BTreeMap;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{LINUX, LOST, Scene};
use crate::support::eventually::eventually_within;
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::{addresses, annotated, within};

/// An unknown pool in the annotation, and a finalizer on a Service that is being deleted, hide no misplaced Service.
#[tokio::test]
async fn denied_and_deleted_services_count_as_misplaced() {
    let scene = Scene::shared().await;
    let tenant = scene.tenant("hidden").await;
    for name in ["denied", "deleted"] {
        let mut linux = annotated(name, json!({"clusterip-policy/os": "linux"}), json!({}));
        linux["metadata"]["finalizers"] = json!(["example.com/stays"]);
        let created = tenant.creates(&linux).await;
        assert!(within(addresses(&created)[0], LINUX), "{created}");
    }
    let deleted = path(&tenant.namespace, "deleted");
    tenant.request(Method::DELETE, &deleted, &json!({})).await.unwrap();
    tenant.annotates("deleted", json!({"clusterip-policy/os": "windows"})).await.unwrap();
    tenant.annotates("denied", json!({"clusterip-policy/pool": "nope"})).await.unwrap();
    for name in ["denied", "deleted"] {
        scene.wait_for_event(&tenant.namespace, name, "AddressMisplaced").await;
    }
    let server = scene.server.as_ref().unwrap();
    for reason in ["unmatched", "being_deleted"] {
        let metric = format!("clusterip_misplaced_services{{reason=\"{reason}\"}} ");
        eventually_within(LOST, &metric, async || {
            let (_, metrics) = server.get("/metrics").await?;
            let count: u32 = metrics.lines().find_map(|line| line.strip_prefix(&metric))?.parse().ok()?;
            (count > 0).then_some(())
        })
        .await;
    }
    let findings = scene.findings(&tenant.namespace).await;
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for finding in &findings {
        if let Some(name) = finding["name"].as_str() {
            kinds.entry(name).or_default().push(finding["kind"].as_str().unwrap());
        }
    }
    assert_eq!(kinds, BTreeMap::from([("deleted", vec!["misplaced"]), ("denied", vec!["unmatched", "denied"])]));
    let stays = tenant.request(Method::GET, &deleted, &Value::Null).await.unwrap();
    assert!(within(addresses(&stays)[0], LINUX), "{stays}");
    let released = json!({"metadata": {"finalizers": null}});
    tenant.request(Method::PATCH, &deleted, &released).await.unwrap();
}
