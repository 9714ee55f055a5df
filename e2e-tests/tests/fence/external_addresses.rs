//! External addresses of ExternalPools with a fence.

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{
    Change, Fenced, UNFENCED, by_each_fence, create, dry_run, fenced_pool, outcome, send, tenant, unfenced_service,
    until_refused,
};
use crate::support::move_helpers::path;
use crate::support::service_webhook_rules::{Call, assert_calls};
use crate::support::webhook_cluster::{annotated, service};

by_each_fence!(
    external_addresses_of_a_pool_can_not_be_claimed_from_outside,
    load_balancer_writes_no_address_of_a_pool_into_the_status_of_another_service,
);

/// A Service that claims an external address.
struct Claim {
    name: &'static str,
    annotations: Value,
    spec: Value,
    expected: &'static str,
}

/// The ranges of a pool, and the fields. `parser.rs` has the texts that a field can contain.
fn claims() -> Vec<Claim> {
    let external_ip = |name, address: &str, expected| Claim {
        name,
        annotations: json!({}),
        spec: json!({"externalIPs": [address]}),
        expected,
    };
    let load_balancer_ip = |name, text: &str, expected| Claim {
        name,
        annotations: json!({}),
        spec: json!({"type": "LoadBalancer", "loadBalancerIP": text}),
        expected,
    };
    let annotation = |key: &'static str, text: &str, expected| Claim {
        name: key,
        annotations: json!({key: text}),
        spec: json!({"type": "LoadBalancer"}),
        expected,
    };
    vec![
        external_ip("below the CIDR", "192.0.2.15", "allowed"),
        external_ip("the first address of the CIDR", "192.0.2.16", "refused"),
        external_ip("the last address of the CIDR", "192.0.2.31", "refused"),
        external_ip("above the CIDR", "192.0.2.32", "allowed"),
        external_ip("below the range", "10.0.9.9", "allowed"),
        external_ip("the first address of the range", "10.0.9.10", "refused"),
        external_ip("below the range, although greater as a text", "10.0.9.4", "allowed"),
        external_ip("in the range", "10.0.9.30", "refused"),
        external_ip("the last address of the range", "10.0.10.5", "refused"),
        external_ip("above the range", "10.0.10.6", "allowed"),
        external_ip("below the IPv6 range", "fd00:9::f", "allowed"),
        external_ip("the first address of the IPv6 range", "fd00:9::10", "refused"),
        external_ip("in the IPv6 range", "fd00:9::1:0", "refused"),
        external_ip("the last address of the IPv6 range", "fd00:9::1:40", "refused"),
        external_ip("above the IPv6 range", "fd00:9::1:41", "allowed"),
        external_ip("in the IPv6 CIDR", "fd00:8::1", "refused"),
        external_ip("outside of the IPv6 CIDR", "fd00:8:0:1::1", "allowed"),
        Claim {
            name: "the second address",
            annotations: json!({}),
            spec: json!({"externalIPs": ["203.0.113.7", "192.0.2.20"]}),
            expected: "refused",
        },
        load_balancer_ip("an address", "192.0.2.20", "refused"),
        // kube-vip looks up names here and in its annotation.
        load_balancer_ip("a name", "vip.example.com", "refused"),
        annotation("kube-vip.io/loadbalancerIPs", "203.0.113.7, 0.0.0.0", "allowed"),
        annotation("kube-vip.io/loadbalancerIPs", "vip.example.com", "refused"),
        annotation("example.com/note", "192.0.2.20", "allowed"),
    ]
}

async fn external_addresses_of_a_pool_can_not_be_claimed_from_outside(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "outside").await;
    let (owner, of_owner) = tenant(plane, "owner").await;
    let cidrs = ["192.0.2.16/28", "10.0.9.10-10.0.10.5", "fd00:9::10 - fd00:9::1:40", "fd00:8::/64"];
    plane.apply(&fenced_pool("ExternalPool", "edge", &cidrs, &owner).to_string()).await;
    until_refused(&client, &namespace, &unfenced_service("web", json!({"externalIPs": ["192.0.2.20"]}))).await;
    let mut seen = Vec::new();
    for Claim { name, annotations, spec, expected } in claims() {
        let request = format!("{name}: {annotations} {spec}");
        let mut web = annotated("web", annotations, spec);
        web["spec"]["clusterIP"] = json!(UNFENCED);
        let result = outcome(dry_run(&client, &namespace, &web).await);
        seen.push(Call { request: request.clone(), outcome: result, expected });
        // Since Kubernetes 1.36, the API server itself refuses texts that are not canonical in some fields. Pools of
        // other tests refuse every text that they can't compare.
        if !["::ffff", "::FFFF", "000", "%", "vip.example.com"].iter().any(|text| request.contains(text)) {
            let result = outcome(dry_run(&of_owner, &owner, &web).await);
            seen.push(Call { request: format!("{request}, by the owner"), outcome: result, expected: "allowed" });
        }
    }
    assert_calls(seen);
    // Each of these texts is another one for 192.0.2.20. Before Kubernetes 1.36, the API server accepts them.
    for text in ["192.000.002.020", "::ffff:192.0.2.20", "::ffff:c000:214", "0:0:0:0:0:FFFF:192.0.2.20"] {
        let result = dry_run(&client, &namespace, &unfenced_service("web", json!({"externalIPs": [text]}))).await;
        assert!(result.is_err(), "{text}: {result:?}");
    }
}

async fn load_balancer_writes_no_address_of_a_pool_into_the_status_of_another_service(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "balanced").await;
    let (owner, of_owner) = tenant(plane, "balanced-owner").await;
    for (namespace, client, address) in [(&namespace, &client, "172.21.0.201"), (&owner, &of_owner, "172.21.0.202")] {
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "clusterIP": address});
        create(client, namespace, &service("web", spec)).await.unwrap();
    }
    plane.apply(&fenced_pool("ExternalPool", "balanced", &["198.19.3.0/24"], &owner).to_string()).await;
    until_refused(&client, &namespace, &unfenced_service("trial", json!({"externalIPs": ["198.19.3.7"]}))).await;
    let controller = plane.client();
    let ingress = |ips: &[&str]| {
        let ingress: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"status": {"loadBalancer": {"ingress": ingress}}})
    };
    let row = |name, namespace, patch, expected| Change { name, namespace, patch, expected };
    let rows = [
        row("another address", &namespace, ingress(&["203.0.113.7"]), "allowed"),
        row("an address of the pool", &namespace, ingress(&["203.0.113.7", "198.19.3.7"]), "refused"),
        row(
            "a name",
            &namespace,
            json!({"status": {"loadBalancer": {"ingress": [{"hostname": "a.example"}]}}}),
            "allowed",
        ),
        row("no address", &namespace, ingress(&[]), "allowed"),
        row(
            "an annotation through the status",
            &namespace,
            json!({"metadata": {"annotations": {"metallb.io/loadBalancerIPs": "198.19.3.7"}}}),
            "refused",
        ),
        row("an address of its pool", &owner, ingress(&["198.19.3.7"]), "allowed"),
    ];
    let mut seen = Vec::new();
    for Change { name, namespace, patch, expected } in rows {
        let status = format!("{}/status", path(namespace, "web"));
        let outcome = outcome(send(&controller, Method::PATCH, &status, &patch).await);
        seen.push(Call { request: name.to_owned(), outcome, expected });
    }
    assert_calls(seen);
}
