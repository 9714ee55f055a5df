//! Objects that are hard to read: the API server stores the managed fields of an object as their author wrote them, also
//! bytes that are no UTF-8 and objects nested hundreds of times, and sends them in lists, watches and reviews.

use axum::http::{Method, Request};
use kube::client::Body;
use serde_json::{Value, json};

use super::support::{BLUE, LINUX, MALLORY, SETTINGS, Scene, Tenant, clusterip};
use crate::support::eventually::eventually;
use crate::support::webhook_cluster::{addresses, annotated, deployment, within};

const NO_UTF8: &[u8] = b"{\"f:\xff\xfe\":{}}";

/// Nested deeper than most readers of JSON read.
fn deep() -> Vec<u8> {
    ["{\"f:a\":".repeat(200), "{}".to_owned(), "}".repeat(200)].concat().into_bytes()
}

/// Sends a create of the object with these managed fields, and returns the status of the answer.
async fn creates(tenant: &Tenant<'_>, collection: &str, object: &Value, fields: &[u8]) -> u16 {
    let mut object = object.clone();
    object["metadata"]["managedFields"] = "FIELDS".into();
    let text = object.to_string();
    let (before, after) = text.split_once("\"FIELDS\"").unwrap();
    let manager = br#"[{"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2026-11-24T10:00:00Z",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": "#;
    let body = [before.as_bytes(), manager, fields, b"}}]", after.as_bytes()].concat();
    let path = format!("{collection}/namespaces/{}/{}", tenant.namespace, plural(&object));
    let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    tenant.client.send(request.body(Body::from(body)).unwrap()).await.unwrap().status().as_u16()
}

fn plural(object: &Value) -> String {
    format!("{}s", object["kind"].as_str().unwrap().to_lowercase())
}

#[tokio::test]
async fn object_that_is_hard_to_read_hides_no_other_and_is_reviewed() {
    let mut scene = Scene::without_server();
    // They exist before the server starts, so that it lists them.
    {
        let mallory = scene.tenant(MALLORY).await;
        for (name, fields) in [("bytes", NO_UTF8), ("deep", &deep())] {
            let service = annotated(name, json!({"clusterip-policy/os": "linux"}), json!({"selector": {"app": name}}));
            assert_eq!(creates(&mallory, "/api/v1", &service, fields).await, 201, "{name}");
            let workload = deployment(name, json!({}));
            assert_eq!(creates(&mallory, "/apis/apps/v1", &workload, fields).await, 201, "{name}");
        }
    }
    scene.install().await;
    scene.serve(SETTINGS).await;
    scene.server.as_mut().unwrap().ready().await;
    let (shop, mallory) = (scene.tenant("shop").await, scene.tenant("tries").await);
    eventually("the webhook to place Services", async || {
        let linux = annotated("trial", json!({"clusterip-policy/os": "linux"}), json!({}));
        let created = scene.create(&shop.client, &shop.namespace, &linux, "?dryRun=All").await.ok()?;
        within(addresses(&created)[0], LINUX).then_some(())
    })
    .await;
    for (nth, fields) in [NO_UTF8, &deep()].into_iter().enumerate() {
        let takes =
            annotated(&format!("takes-{nth}"), json!({}), json!({"clusterIP": format!("172.21.8.{}", 77 + nth)}));
        let status = creates(&mallory, "/api/v1", &takes, fields).await;
        assert!((400..=500).contains(&status), "an address of {BLUE}: {status}");
    }
    // The watch shows this one.
    let later = annotated("later", json!({"clusterip-policy/os": "linux"}), json!({}));
    assert_eq!(creates(&mallory, "/api/v1", &later, NO_UTF8).await, 201);
    let created = shop.creates(&annotated("web", json!({"clusterip-policy/os": "linux"}), json!({}))).await;
    assert!(within(addresses(&created)[0], LINUX), "{created}");
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("settings.yaml");
    std::fs::write(&settings, SETTINGS).unwrap();
    let audit = clusterip(&scene.plane, &["audit", "-o", "json", "--settings", settings.to_str().unwrap()]).await;
    assert!(audit.stdout.starts_with('{'), "{} {}", audit.status, audit.stderr);
    let log = scene.server.as_ref().unwrap().log();
    let failed: Vec<&String> = log.iter().filter(|line| line.contains("watch failed")).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
