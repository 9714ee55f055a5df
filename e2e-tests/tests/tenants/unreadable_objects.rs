//! Objects that are hard to read: the API server stores the managed fields of an object as their author wrote them, also
//! bytes that are no UTF-8 and objects nested hundreds of times, and sends them in lists, watches and reviews.

use std::time::Duration;

use axum::http::{Method, Request};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::support::{BLUE, LINUX, LOST, MALLORY, SETTINGS, Scene, Tenant, WINDOWS, clusterip};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{allocated, deep_fields, path, request, stored, with_managed_fields};
use crate::support::webhook_cluster::{addresses, annotated, deployment, within};

const NO_UTF8: &[u8] = b"{\"f:\xff\xfe\":{}}";

/// Sends a create of the object with these managed fields, and returns the status of the answer.
async fn creates(tenant: &Tenant<'_>, collection: &str, object: &Value, fields: &[u8]) -> u16 {
    let path = format!("{collection}/namespaces/{}/{}", tenant.namespace, plural(object));
    let request = Request::builder().method(Method::POST).uri(path).header("content-type", "application/json");
    let body = Body::from(with_managed_fields(object, fields));
    tenant.client.send(request.body(body).unwrap()).await.unwrap().status().as_u16()
}

fn plural(object: &Value) -> String {
    format!("{}s", object["kind"].as_str().unwrap().to_lowercase())
}

#[tokio::test]
async fn objects_that_are_hard_to_read_hide_no_other_and_delay_no_move() {
    let mut scene = Scene::without_server().await;
    let deep = deep_fields();
    // They exist before the server starts, so that it lists them.
    let misplaced = {
        let mallory = scene.tenant(MALLORY).await;
        for (name, fields) in [("bytes", NO_UTF8), ("deep", &deep)] {
            let now = json!({"clusterip-policy/os": "linux", "clusterip-policy/move": "now"});
            let service = annotated(name, now, json!({"selector": {"app": name}}));
            assert_eq!(creates(&mallory, "/api/v1", &service, fields).await, 201, "{name}");
            let workload = deployment(name, json!({}));
            assert_eq!(creates(&mallory, "/apis/apps/v1", &workload, fields).await, 201, "{name}");
        }
        mallory.namespace
    };
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
    eventually("the moves", async || {
        let addresses = allocated(&scene.admin(), &misplaced).await;
        addresses.iter().all(|(address, _)| within(*address, LINUX)).then_some(())
    })
    .await;
    for (nth, fields) in [NO_UTF8, &deep].into_iter().enumerate() {
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

    objects_that_no_watch_can_show_delay_no_move(&scene, &shop, &mallory).await;
}

/// A field of a message of protobuf.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let (mut bytes, mut length) = (vec![(number << 3) | 2], content.len());
    if number > 15 {
        bytes = vec![((number << 3) & 0x7f) | 0x80 | 2, number >> 4];
    }
    while length > 127 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    [bytes, content.to_vec()].concat()
}

/// A Service with managed fields that are nested so deep that the API server stores and lists it, and can't write it into
/// an event of a watch or into a review: those have further levels.
fn service_in_no_watch(name: &str) -> Vec<u8> {
    const DEPTH: usize = 9998;
    let fields = ["{\"f:a\":".repeat(DEPTH), "{}".to_owned(), "}".repeat(DEPTH)].concat();
    let text = |number, text: &str| field(number, text.as_bytes());
    let manager = [text(1, "m"), text(2, "Update"), text(3, "v1"), text(6, "FieldsV1"), field(7, &text(1, &fields))];
    let metadata = [text(1, name), field(17, &manager.concat())].concat();
    let spec = field(1, &[text(2, "TCP"), vec![3 << 3, 80]].concat());
    let service = [field(1, &metadata), field(2, &spec)].concat();
    let kind = [text(1, "v1"), text(2, "Service")].concat();
    [b"k8s\0".to_vec(), field(1, &kind), field(2, &service)].concat()
}

/// One such object exists during a move, and another one is created and deleted again and again.
async fn objects_that_no_watch_can_show_delay_no_move(scene: &Scene, shop: &Tenant<'_>, mallory: &Tenant<'_>) {
    let admin = scene.admin();
    let services = format!("/api/v1/namespaces/{}/services", mallory.namespace);
    let in_protobuf = |method, path: &str| {
        let request = Request::builder().method(method).uri(path);
        let kind = "application/vnd.kubernetes.protobuf";
        request.header("content-type", kind).header("accept", kind)
    };
    let before = scene.time_to_move(&shop.namespace, "before").await;
    let stays = in_protobuf(Method::POST, &services).body(Body::from(service_in_no_watch("stays")));
    assert_eq!(mallory.client.send(stays.unwrap()).await.unwrap().status().as_u16(), 201);
    let after = scene.time_to_move(&shop.namespace, "after").await;
    assert!(after < LOST, "a move took {before:?} before, and {after:?} after");
    let is_deleted = in_protobuf(Method::DELETE, &format!("{services}/stays")).body(Body::empty());
    mallory.client.send(is_deleted.unwrap()).await.unwrap();

    // A deletion is an event with the whole object, too.
    let writes = async {
        loop {
            let create = in_protobuf(Method::POST, &services).body(Body::from(service_in_no_watch("deep")));
            let delete = in_protobuf(Method::DELETE, &format!("{services}/deep")).body(Body::empty());
            for request in [create, delete] {
                mallory.client.send(request.unwrap()).await.unwrap();
                sleep(Duration::from_millis(50)).await;
            }
        }
    };
    let others = async {
        sleep(Duration::from_secs(5)).await;
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none"});
        shop.creates(&annotated("balancer", json!({"clusterip-policy/os": "linux"}), spec)).await;
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.80"}]}}});
        let of_status = format!("{}/status", path(&shop.namespace, "balancer"));
        admin.request::<Value>(request(Method::PATCH, &of_status, &status)).await.unwrap();
        shop.annotates("balancer", json!({"clusterip-policy/os": "windows"})).await.unwrap();
        let moved = eventually("the move of a load balancer to end", async || {
            let now = stored(&admin, &shop.namespace, "balancer").await?;
            let is_there = addresses(&now).first().is_some_and(|address| within(*address, WINDOWS));
            let is_marked = !now["metadata"]["annotations"]["clusterip-policy/moving"].is_null();
            (is_there && !is_marked && now["spec"]["type"] == "LoadBalancer").then_some(now)
        });
        assert_eq!(moved.await["status"]["loadBalancer"]["ingress"][0]["ip"], "203.0.113.80");
        for nth in 0..5 {
            let took = scene.time_to_move(&shop.namespace, &format!("during-{nth}")).await;
            let (status, why) = scene.server.as_ref().unwrap().get("/readyz").await.unwrap();
            assert!(took < LOST && status == 200, "a move took {took:?}; the server: {status} {why}");
        }
    };
    tokio::select! {
        () = writes => unreachable!(),
        () = others => {}
    };
}
