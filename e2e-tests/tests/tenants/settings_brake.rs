//! Services of a tenant that would move by an administrator's change of the settings, and the moves of others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{LINUX, Scene, WINDOWS};
use crate::support::eventually::eventually;
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::{addresses, annotated, deployment, on, service, within};

/// A Service of more than 256 KiB, which never moves.
pub fn too_large(name: &str) -> Value {
    with_ports(name, 2000)
}

/// A large Service with so many ports.
pub fn with_ports(name: &str, ports: u16) -> Value {
    let ports: Vec<Value> = (1..=ports).map(|port| json!({"name": format!("port-{port:050}"), "port": port})).collect();
    annotated(
        name,
        json!({"example.com/filling": "x".repeat(200_000)}),
        json!({"ports": ports, "selector": {"app": "web"}}),
    )
}

/// 25 Services that can't move, and 60 others that can, all of which a Deployment makes misplaced and puts in place again
/// while the settings change.
#[tokio::test]
async fn misplaced_services_of_a_tenant_do_not_brake_the_moves_of_others() {
    let scene = Scene::start().await;
    let mallory = scene.tenant("mallory").await;
    let shop = scene.plane.namespace("shop").await;
    let usual = scene.pace(&shop, "before").await;
    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", mallory.namespace);
    mallory.request(Method::POST, &deployments, &deployment("web", on("linux"))).await.unwrap();
    for nth in 0..3 {
        let created =
            scene.create(&scene.admin(), &shop, &service(&format!("web-{nth}"), json!({})), "").await.unwrap();
        assert!(within(addresses(&created)[0], LINUX), "{created}");
    }
    let large = (0..25).map(|nth| too_large(&format!("large-{nth}")));
    let ordinary = (0..60).map(|nth| service(&format!("ordinary-{nth}"), json!({"selector": {"app": "web"}})));
    for one in large.chain(ordinary) {
        mallory.creates(&one).await;
    }
    let web = format!("{deployments}/web");
    let stop = AtomicBool::new(false);
    let flip = async {
        for os in ["windows", "linux"].iter().cycle() {
            let flipped = json!({"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": os}}}}});
            mallory.request(Method::PATCH, &web, &flipped).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    let change = async {
        let pace = scene.pace_to_blue(&shop, (0..3).map(|nth| format!("web-{nth}"))).await;
        stop.store(true, Ordering::Relaxed);
        pace
    };
    let (pace, ()) = tokio::join!(change, flip);
    eprintln!("the moves of another namespace after the change of the settings: {pace:?}");
    pace.is_at_most_delayed(usual.times(3));
}

/// The external name has no effect on a Service of type ClusterIP, and does not hide that the Service is misplaced.
#[tokio::test]
async fn external_name_of_a_cluster_ip_service_hides_nothing() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant("aliased").await;
    let never = json!({"clusterip-policy/move": "never", "clusterip-policy/os": "linux"});
    mallory.creates(&annotated("aliased", never, json!({"externalName": "moving.invalid"}))).await;
    let kept = mallory.annotates("aliased", json!({"clusterip-policy/os": "windows"})).await.unwrap();
    assert_eq!((&kept["spec"]["type"], &kept["spec"]["externalName"]), (&json!("ClusterIP"), &json!("moving.invalid")));
    let findings = scene.findings(&mallory.namespace).await;
    let own = findings.iter().filter(|finding| finding["namespace"] == mallory.namespace.as_str());
    let kinds: Vec<&Value> = own.map(|finding| &finding["kind"]).collect();
    assert_eq!(kinds, ["misplaced"]);
    mallory.annotates("aliased", json!({"clusterip-policy/move": null})).await.unwrap();
    let path = path(&mallory.namespace, "aliased");
    eventually("the Service to move", async || {
        let now = mallory.request(Method::GET, &path, &Value::Null).await.ok()?;
        addresses(&now).first().is_some_and(|address| within(*address, WINDOWS)).then_some(())
    })
    .await;
}
