//! Services whose selector is long. The API server writes it before the addresses and the type.

use axum::http::Method;
use serde_json::{Map, Value, json};

use super::support::{LINUX, Scene};
use crate::support::eventually::eventually;
use crate::support::move_helpers::{path, request, stored};
use crate::support::webhook_cluster::{addresses, annotated, within};

#[tokio::test]
async fn long_selector_hides_no_address_of_a_service() {
    const RECORD: &str = "clusterip-policy/external-addresses";
    let mut scene = Scene::without_server().await;
    let blue = scene.plane.namespace("blue").await;
    let mallory = scene.tenant("selecting").await;
    let namespace = mallory.namespace.clone();
    let selector: Map<String, Value> = (0..17_000).map(|nth| (format!("a{nth}"), "".into())).collect();
    // The server starts later, so that no reservation makes these addresses count as held: all of the pool.
    for (name, range) in [("first", 17..25), ("second", 25..31), ("misplaced", 0..0)] {
        let ips: Vec<String> = range.map(|last| format!("192.0.2.{last}")).collect();
        let spec = json!({"selector": selector, "externalIPs": ips});
        mallory.creates(&annotated(name, json!({"clusterip-policy/os": "linux"}), spec)).await;
    }
    scene.begin().await;
    let admin = scene.admin();
    eventually("the Service to move to its pool", async || {
        let now = stored(&admin, &namespace, "misplaced").await?;
        addresses(&now).first().is_some_and(|address| within(*address, LINUX)).then_some(())
    })
    .await;
    let balancer = json!({"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external",
        "allocateLoadBalancerNodePorts": false});
    let balancer = annotated("balancer", json!({}), balancer);
    let record = async || {
        let created = scene.create(&admin, &blue, &balancer, "?dryRun=All").await.unwrap();
        created["metadata"]["annotations"][RECORD].clone()
    };
    assert_eq!(record().await, Value::Null, "all addresses are held");
    admin.request::<Value>(request(Method::DELETE, &path(&namespace, "first"), &json!({}))).await.unwrap();
    eventually("an address to be free", async || (!record().await.is_null()).then_some(())).await;
}
