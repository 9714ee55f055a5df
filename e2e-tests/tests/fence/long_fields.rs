//! Fields with many external addresses, which the API server must not compare.

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{
    BEFORE_THE_FENCE, Fenced, UNFENCED, by_each_fence, dry_run, fenced_pool, outcome, send, service_at, tenant,
    unfenced_service, until_refused,
};
use crate::support::costly_services::addresses_outside;
use crate::support::move_helpers::path;
use crate::support::service_webhook_rules::{Call, assert_calls};
use crate::support::webhook_cluster::annotated;

by_each_fence!(long_fields_are_refused_unread, long_fields_from_before_the_fence_do_not_block_a_service,);

/// A Service with a field, and a text of the message that refuses it; none if it is allowed.
struct LongField {
    name: &'static str,
    annotations: Value,
    spec: Value,
    refused_because: Option<&'static str>,
}

/// The API server must not compare a long list before it refuses the list, and must not run out of its budget either.
async fn long_fields_are_refused_unread(plane: &Fenced) {
    const TOO_LONG: &str = " has more than 64 addresses or 255 characters, and cannot be compared with ";
    let (namespace, client) = tenant(plane, "long").await;
    plane.apply(&fenced_pool("ServicePool", "long", &["172.21.22.0/24"], "another-team").to_string()).await;
    plane.apply(&fenced_pool("ExternalPool", "long", &["198.19.4.0/24"], "another-team").to_string()).await;
    until_refused(&client, &namespace, &service_at("web", "172.21.22.7")).await;
    until_refused(&client, &namespace, &unfenced_service("web", json!({"externalIPs": ["198.19.4.7"]}))).await;

    let external_ips = |name, addresses: Vec<String>, refused_because| LongField {
        name,
        annotations: json!({}),
        spec: json!({"externalIPs": addresses}),
        refused_because,
    };
    let annotation = |name, text: String, refused_because| LongField {
        name,
        annotations: json!({"metallb.io/loadBalancerIPs": text}),
        spec: json!({"type": "LoadBalancer"}),
        refused_because,
    };
    let load_balancer_ip = |name, text: String, refused_because| LongField {
        name,
        annotations: json!({}),
        spec: json!({"type": "LoadBalancer", "loadBalancerIP": text}),
        refused_because,
    };
    let with = |mut addresses: Vec<String>, address: &str| {
        addresses.push(address.to_owned());
        addresses
    };
    let rows = [
        external_ips("64 addresses", addresses_outside(64), None),
        external_ips(
            "64 addresses, the last one of the ServicePool",
            with(addresses_outside(63), "172.21.22.7"),
            Some("spec.externalIPs: 172.21.22.7 lies in ServicePool \"long\""),
        ),
        external_ips(
            "64 addresses, the last one of the ExternalPool",
            with(addresses_outside(63), "198.19.4.7"),
            Some("spec.externalIPs: 198.19.4.7 lies in ExternalPool \"long\""),
        ),
        external_ips("65 addresses", addresses_outside(65), Some(TOO_LONG)),
        external_ips("1,000 addresses", addresses_outside(1000), Some(TOO_LONG)),
        external_ips("10,000 addresses", addresses_outside(10_000), Some(TOO_LONG)),
        annotation("an annotation with 64 short parts", ["x"; 64].join(","), None),
        annotation("an annotation with 65 short parts", ["x"; 65].join(","), Some(TOO_LONG)),
        annotation("an annotation of 255 characters", "a".repeat(255), None),
        annotation("an annotation of commas", ",".repeat(250_000), Some(TOO_LONG)),
        annotation("an annotation of line breaks", "\n".repeat(250_000), Some(TOO_LONG)),
        annotation("an annotation of 256 characters", "a".repeat(256), Some(TOO_LONG)),
        load_balancer_ip("a loadBalancerIP of commas", ",".repeat(500_000), Some(TOO_LONG)),
        load_balancer_ip("a loadBalancerIP of letters", "a".repeat(500_000), Some(TOO_LONG)),
    ];
    let mut seen = Vec::new();
    for LongField { name, annotations, spec, refused_because } in rows {
        let mut web = annotated("web", annotations, spec);
        web["spec"]["clusterIP"] = json!(UNFENCED);
        let result = dry_run(&client, &namespace, &web).await;
        let outcome = match (result, refused_because) {
            (Err(error), Some(text)) if error.contains(text) => "refused".to_owned(),
            (Err(error), _) => error,
            (Ok(_), _) => "allowed".to_owned(),
        };
        let expected = if refused_because.is_some() { "refused" } else { "allowed" };
        seen.push(Call { request: name.to_owned(), outcome, expected });
    }
    assert_calls(seen);
}

async fn long_fields_from_before_the_fence_do_not_block_a_service(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "long-before").await;
    let controller = plane.client();
    plane.apply(&fenced_pool("ServicePool", "long-before", &["172.21.23.0/24"], "another-team").to_string()).await;
    plane.apply(&fenced_pool("ExternalPool", "long-before", &["198.19.5.0/24"], "another-team").to_string()).await;
    until_refused(&client, &namespace, &service_at("web", "172.21.23.7")).await;
    until_refused(&client, &namespace, &unfenced_service("web", json!({"externalIPs": ["198.19.5.7"]}))).await;

    let ingress = |ip: &str| json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}});
    let addresses = |addresses: Vec<String>| json!({"spec": {"externalIPs": addresses}});
    let on_service = path(BEFORE_THE_FENCE, "old");
    let on_status = format!("{on_service}/status");
    let rows = [
        ("a status", &on_status, ingress("203.0.113.7"), "allowed"),
        ("another status", &on_status, ingress("203.0.113.8"), "allowed"),
        ("a status with an address of the ServicePool", &on_status, ingress("172.21.23.7"), "refused"),
        ("a status with an address of the ExternalPool", &on_status, ingress("198.19.5.7"), "refused"),
        ("a label", &on_service, json!({"metadata": {"labels": {"changed": "yes"}}}), "allowed"),
        ("an annotation", &on_service, json!({"metadata": {"annotations": {"changed": "yes"}}}), "allowed"),
        ("one more address", &on_service, addresses(addresses_outside(1001)), "refused"),
        ("64 addresses", &on_service, addresses(addresses_outside(64)), "allowed"),
    ];
    let mut seen = Vec::new();
    for (name, path, patch, expected) in rows {
        let outcome = outcome(send(&controller, Method::PATCH, path, &patch).await);
        seen.push(Call { request: name.to_owned(), outcome, expected });
    }
    assert_calls(seen);
}
