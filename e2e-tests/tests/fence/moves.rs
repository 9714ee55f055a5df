//! Moves of Services that have had an address of a fenced pool since before the fence.

use axum::http::Method;
use clusterip_moves::outcome::Outcome;
use serde_json::{Value, json};

use super::support::{create, fenced, fenced_pool, outcome, patch, send, tenant, unfenced_service, until_refused};
use crate::support::move_helpers::{These, addresses, mover, order, path, stored};
use crate::support::service_webhook_rules::{Call, assert_calls};
use crate::support::webhook_cluster::annotated;

#[tokio::test]
async fn service_with_an_external_address_from_before_the_fence_is_moved() {
    let plane = fenced().await;
    let (namespace, client) = tenant(&plane, "moved").await;
    let admin = plane.client();
    let balancer = |more: Value| {
        let mut spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none"});
        json_patch::merge(&mut spec, &more);
        spec
    };
    let rows = [
        ("none", json!({}), balancer(json!({}))),
        ("external-ips", json!({}), json!({"externalIPs": ["198.19.40.2"]})),
        ("load-balancer-ip", json!({}), balancer(json!({"loadBalancerIP": "198.19.40.3"}))),
        ("metallb", json!({"metallb.io/loadBalancerIPs": "198.19.40.4"}), balancer(json!({}))),
        ("record", json!({"clusterip-policy/external-addresses": "198.19.40.5"}), balancer(json!({}))),
    ];
    for (nth, (name, annotations, spec)) in rows.iter().enumerate() {
        let mut service = annotated(name, annotations.clone(), spec.clone());
        service["spec"]["clusterIP"] = json!(format!("172.21.13.{}", 101 + nth));
        create(&client, &namespace, &service).await.unwrap();
    }
    plane.apply(&fenced_pool("ExternalPool", "moved", &["198.19.40.0/24"], "another-team").to_string()).await;
    until_refused(&client, &namespace, &unfenced_service("trial", json!({"externalIPs": ["198.19.40.9"]}))).await;

    let mut calls = Vec::new();
    for (nth, (name, ..)) in rows.iter().enumerate() {
        // The fence lets its author change such a Service.
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        let changed = outcome(patch(&client, &namespace, name, label).await);
        calls.push(Call { request: format!("{name}: a label"), outcome: changed, expected: "allowed" });
        let service = send(&admin, Method::GET, &path(&namespace, name), &Value::Null).await.unwrap();
        let to = [format!("172.21.13.{}", 121 + nth).parse().unwrap()];
        let moved = mover(admin.clone()).start(&order(&service, &to), None, &These(vec![])).await;
        let now = stored(&admin, &namespace, name).await.unwrap();
        let outcome = match moved {
            Ok(Outcome::Moved { .. }) => "moved".to_owned(),
            other => {
                let other: String = format!("{other:?}").chars().take(300).collect();
                format!("type {} with {:?}: {other}", now["spec"]["type"], addresses(&now))
            }
        };
        calls.push(Call { request: format!("{name}: a move"), outcome, expected: "moved" });
    }
    // No way around the fence: what another type hides is new for a load balancer, also in two steps.
    let hidden = [
        json!({"metallb.io/loadBalancerIPs": "198.19.40.8"}),
        json!({"kube-vip.io/loadbalancerIPs": "other.example.com"}),
    ];
    for (nth, annotations) in hidden.into_iter().enumerate() {
        let name = format!("hidden-{nth}");
        let mut service = annotated(&name, annotations.clone(), json!({}));
        service["spec"]["clusterIP"] = json!(format!("172.21.13.{}", 141 + nth));
        create(&client, &namespace, &service).await.unwrap();
        let alias = json!({"spec": {"type": "ExternalName", "externalName": "moving.invalid"}});
        let first = outcome(patch(&client, &namespace, &name, alias).await);
        let balancer = json!({"spec": {"type": "LoadBalancer", "externalName": null,
            "loadBalancerClass": "example.com/none"}});
        let last = outcome(patch(&client, &namespace, &name, balancer).await);
        calls.push(Call { request: format!("{annotations} as {first}, then"), outcome: last, expected: "refused" });
    }
    assert_calls(calls);
}
