//! A tenant gets no fenced address in several writes, and the fence answers its largest requests.

use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, RECORD_ANNOTATION, REQUESTED_ADDRESS_ANNOTATION};
use serde_json::{Value, json};

use crate::fence::support::{
    Fenced, by_each_fence, create, dry_run, fenced_pool, outcome, patch, service_at, tenant, unfenced_service,
    until_refused,
};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::costly_services::{costly, fenced_pools};
use crate::support::service_webhook_rules::{assert_calls, call};
use crate::support::webhook_cluster::{annotated, service};

by_each_fence!(no_fenced_address_in_two_writes, text_that_moves_to_another_field_is_new,);

/// What a tenant writes before the address itself. `A` stands for the address.
const FIRST: [(&str, &str); 16] = [
    ("a blank inside", "B R"),
    ("a line break inside", "B\nR"),
    ("a no-break space inside", "B\u{a0}R"),
    ("a zero-width space before it", "\u{200b}A"),
    ("blanks in another order", " BR x"),
    ("another text before it", "auto A"),
    ("another text after it", "A auto"),
    ("a comma inside", "B,R"),
    ("a semicolon", "A;A"),
    ("quotes", "\"A\""),
    ("a range", "A-A"),
    ("a CIDR", "A/32"),
    ("a port", "A:80"),
    ("IPv4 as IPv6", "::ffff:A"),
    ("leading zeros", "0A"),
    ("a zone", "A%eth0"),
];

/// Writes a text into a field of a Service: `spec.loadBalancerIP`, or an annotation.
fn field(key: &str, text: &str) -> Value {
    match key {
        "spec.loadBalancerIP" => json!({"spec": {"loadBalancerIP": text}}),
        key => json!({"metadata": {"annotations": {key: text}}}),
    }
}

async fn no_fenced_address_in_two_writes(plane: &Fenced) {
    let (namespace, mallory) = tenant(plane, "two-writes").await;
    plane.apply(&fenced_pool("ServicePool", "two-writes", &["172.21.27.0/24"], "another-team").to_string()).await;
    plane.apply(&fenced_pool("ExternalPool", "two-writes", &["198.19.7.0/24"], "another-team").to_string()).await;
    until_refused(&mallory, &namespace, &service_at("web", "172.21.27.7")).await;
    until_refused(&mallory, &namespace, &unfenced_service("web", json!({"externalIPs": ["198.19.7.7"]}))).await;
    let balancer =
        json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "clusterIP": "172.21.0.206"});
    create(&mallory, &namespace, &service("web", balancer)).await.unwrap();

    let keys = ["spec.loadBalancerIP", REQUESTED_ADDRESS_ANNOTATION, RECORD_ANNOTATION];
    let mut calls = Vec::new();
    for key in keys.into_iter().chain(FOREIGN_ANNOTATIONS) {
        for (begin, rest) in [("172.21.", "27.20"), ("198.19.", "7.20")] {
            let address = format!("{begin}{rest}");
            for (name, form) in FIRST {
                let first = form.replace('A', &address).replace('B', begin).replace('R', rest);
                // Whether the API server accepts this write or not: it must not make the next one possible.
                let written = outcome(patch(&mallory, &namespace, "web", field(key, &first)).await);
                let request = format!("{key}: {name}: {written}, then the address");
                let outcome = outcome(patch(&mallory, &namespace, "web", field(key, &address)).await);
                calls.push(call(request, outcome, "refused"));
            }
        }
    }
    // What one field has does not count for another, nor what a Service of another type has.
    let key = "metallb.io/loadBalancerIPs";
    let address = "172.21.27.21";
    let aside = json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null, "loadBalancerIP": null},
        "metadata": {"annotations": {key: address}}});
    patch(&mallory, &namespace, "web", aside).await.unwrap();
    let balancer = json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": "example.com/none"}});
    let rows = [
        ("the type", balancer.clone()),
        ("the type and another field", {
            let mut both = balancer;
            both["spec"]["loadBalancerIP"] = address.into();
            both["metadata"]["annotations"][key] = json!(null);
            both
        }),
        ("spec.externalIPs", json!({"spec": {"externalIPs": [address]}})),
        ("many equal parts", json!({"spec": {"externalIPs": ["203.0.113.7", address]}})),
    ];
    for (name, change) in rows {
        let outcome = outcome(patch(&mallory, &namespace, "web", change).await);
        calls.push(call(name, outcome, "refused"));
    }
    assert_calls(calls);
}

/// The texts of all fields, one after the other with commas, are the same before and after these writes.
async fn text_that_moves_to_another_field_is_new(plane: &Fenced) {
    let (namespace, mallory) = tenant(plane, "other-field").await;
    plane.apply(&fenced_pool("ServicePool", "other-field", &["172.21.28.0/24"], "another-team").to_string()).await;
    plane.apply(&fenced_pool("ExternalPool", "other-field", &["198.19.8.0/24"], "another-team").to_string()).await;
    until_refused(&mallory, &namespace, &service_at("web", "172.21.28.7")).await;
    until_refused(&mallory, &namespace, &unfenced_service("web", json!({"externalIPs": ["198.19.8.7"]}))).await;
    let (cilium, kube_vip, metallb) =
        ("io.cilium/lb-ipam-ips", "kube-vip.io/loadbalancerIPs", "metallb.io/loadBalancerIPs");
    let name = "vip.example.com";
    let rows = [
        (json!({cilium: format!(",{name}")}), json!({cilium: "", kube_vip: name, metallb: ","})),
        (json!({metallb: format!("{name},,")}), json!({metallb: "", kube_vip: format!(",,{name}")})),
        (json!({cilium: format!(",{name}")}), json!({cilium: null, kube_vip: format!("{name},")})),
    ];
    let mut calls = Vec::new();
    for (nth, (first, then)) in rows.into_iter().enumerate() {
        let web = format!("web-{nth}");
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none",
            "clusterIP": format!("172.21.0.{}", 210 + nth)});
        create(&mallory, &namespace, &annotated(&web, first, spec)).await.unwrap();
        let then = json!({"metadata": {"annotations": then}});
        let outcome = outcome(patch(&mallory, &namespace, &web, then.clone()).await);
        calls.push(call(then.to_string(), outcome, "refused"));
    }
    assert_calls(calls);
}

/// A Service that costs more than the API server's limit for one policy would be refused with another message.
#[tokio::test]
async fn services_with_many_addresses_are_answered_within_the_limit_of_cost() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
    plane.install_pools().await;
    plane.kubectl(&["apply", "-k", concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/fence")]).await.ok();
    let (namespace, mallory) = tenant(&plane, "mallory").await;
    plane
        .apply(&json!({"apiVersion": "v1", "kind": "List", "items": fenced_pools().collect::<Vec<_>>()}).to_string())
        .await;
    until_refused(&mallory, &namespace, &service_at("web", "172.21.140.7")).await;
    until_refused(&mallory, &namespace, &unfenced_service("web", json!({"externalIPs": ["198.18.40.7"]}))).await;
    let mut calls = Vec::new();
    for service in costly() {
        let outcome = outcome(dry_run(&mallory, &namespace, &service.object).await);
        let expected = if service.is_allowed { "allowed" } else { "refused" };
        calls.push(call(service.name, outcome, expected));
    }
    assert_calls(calls);
}
