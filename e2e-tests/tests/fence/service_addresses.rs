//! ClusterIPs of ServicePools with a fence.

use axum::http::Method;
use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use super::support::{
    BY_POLICY, Fenced, UNFENCED, by_each_fence, create, dry_run, fenced, fenced_pool, outcome, patch, send, service_at,
    tenant, unfenced_service, until_refused,
};
use crate::support::eventually::eventually;
use crate::support::move_helpers::path;
use crate::support::pools::pool;
use crate::support::service_webhook_rules::{Call, assert_calls};
use crate::support::webhook_cluster::{addresses, annotated, service, within};

by_each_fence!(
    many_creates_of_a_tenant_get_no_address_of_another_team,
    both_families_count,
    reserved_address_is_kept_for_its_service,
    address_of_a_pool_is_no_external_address_of_others,
    service_of_the_api_server_is_exempt,
    temporary_services_of_a_seamless_move_may_have_the_addresses_of_the_service,
    address_that_an_external_name_service_keeps_is_new_when_it_becomes_a_cluster_ip,
);

/// How many requests run at once.
const AT_ONCE: usize = 16;

async fn many_creates_of_a_tenant_get_no_address_of_another_team(plane: &Fenced) {
    const RANGE: &str = "172.21.8.0/22";
    plane.namespace("blue").await;
    plane.apply(&fenced_pool("ServicePool", "blue", &[RANGE], "blue").to_string()).await;
    let (namespace, mallory) = tenant(plane, "mallory").await;
    until_refused(&mallory, &namespace, &service_at("trial", "172.21.8.1")).await;

    let address = |nth: usize| format!("172.21.{}.{}", 8 + nth % 4, 1 + 4 * nth);
    let creates = stream::iter(0..60).map(async |nth| {
        let name = format!("web-{nth}");
        create(&mallory, &namespace, &service_at(&name, &address(nth))).await
    });
    let results: Vec<_> = creates.buffer_unordered(AT_ONCE).collect().await;
    let expected = "lies in ServicePool \"blue\", which does not admit this Service of namespace mallory: \
                    match.namespaces does not match; choose another address, or remove spec.clusterIP and create the \
                    Service again";
    let others: Vec<_> =
        results.into_iter().filter(|result| !result.as_ref().is_err_and(|error| error.contains(expected))).collect();
    assert!(others.is_empty(), "{others:?}");

    // The API server may pick an address of this or another pool by itself; then it refuses the Service.
    let picks = stream::iter(0..30).map(async |nth| {
        let result = create(&mallory, &namespace, &service(&format!("any-{nth}"), json!({}))).await;
        result.map(|created| addresses(&created)).map_err(|error| error.contains(BY_POLICY))
    });
    let picks: Vec<_> = picks.buffer_unordered(AT_ONCE).collect().await;
    let wrong = |pick: &Result<Vec<_>, bool>| match pick {
        Ok(addresses) => addresses.iter().any(|address| within(*address, RANGE)),
        Err(by_policy) => !by_policy,
    };
    assert!(!picks.iter().any(wrong), "{picks:?}");

    // A Service without an address gets one in an update.
    let external_name = service("alias", json!({"type": "ExternalName", "externalName": "example.com"}));
    create(&mallory, &namespace, &external_name).await.unwrap();
    let change = json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "172.21.8.7"}});
    assert_eq!(outcome(patch(&mallory, &namespace, "alias", change).await), "refused");

    let all: Value = send(&plane.client(), Method::GET, "/api/v1/services", &json!(null)).await.unwrap();
    let services = all["items"].as_array().unwrap();
    let intruders: Vec<_> = services
        .iter()
        .filter(|service| addresses(service).iter().any(|address| within(*address, RANGE)))
        .map(|service| &service["metadata"])
        .collect();
    assert!(intruders.is_empty(), "{intruders:?}");
    // The addresses are free for the team that they belong to.
    create(&plane.client(), "blue", &service_at("web", "172.21.8.7")).await.unwrap();
}

async fn both_families_count(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "families").await;
    plane.apply(&fenced_pool("ServicePool", "families", &["fd00:21::f00/120"], "another-team").to_string()).await;
    let dual = |second: &str| {
        service(
            "web",
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "172.21.13.7",
            "clusterIPs": ["172.21.13.7", second]}),
        )
    };
    until_refused(&client, &namespace, &dual("fd00:21::f07")).await;
    let error = dry_run(&client, &namespace, &dual("fd00:21::f07")).await.unwrap_err();
    assert!(error.contains("fd00:21::f07 lies in ServicePool \"families\""), "{error}");
    dry_run(&client, &namespace, &dual("fd00:21::c07")).await.unwrap();
    dry_run(&client, &namespace, &service("headless", json!({"clusterIP": "None"}))).await.unwrap();
}

#[tokio::test]
async fn edit_of_a_pool_takes_effect() {
    let plane = fenced().await;
    let (namespace, client) = tenant(&plane, "edited").await;
    let web = service_at("web", "172.21.15.7");
    let until = async |expected: &'static str| {
        eventually(expected, async || (outcome(dry_run(&client, &namespace, &web).await) == expected).then_some(()))
            .await;
    };
    plane.apply(&fenced_pool("ServicePool", "edited", &["172.21.15.0/24"], "another-team").to_string()).await;
    until("refused").await;
    plane.apply(&fenced_pool("ServicePool", "edited", &["172.21.15.0/24"], &namespace).to_string()).await;
    until("allowed").await;
    plane.apply(&fenced_pool("ServicePool", "edited", &["172.21.15.0/24"], "another-team").to_string()).await;
    until("refused").await;
    let allow = r#"{"spec": {"fence": "Allow"}}"#;
    plane.kubectl(&["patch", "servicepool", "edited", "--type=merge", "--patch", allow]).await.ok();
    until("allowed").await;
    let deny = r#"{"spec": {"fence": "Deny"}}"#;
    plane.kubectl(&["patch", "servicepool", "edited", "--type=merge", "--patch", deny]).await.ok();
    until("refused").await;
    plane.kubectl(&["delete", "servicepool", "edited"]).await.ok();
    until("allowed").await;
}

async fn reserved_address_is_kept_for_its_service(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "reserves").await;
    let reservation = json!({"address": "172.21.20.7", "namespace": namespace, "name": "web"});
    let spec = json!({"cidrs": ["172.21.20.0/24"], "fence": "Deny", "reservations": [reservation]});
    plane.apply(&pool("ServicePool", "reserves", spec).to_string()).await;
    until_refused(&client, &namespace, &service_at("other", "172.21.20.7")).await;

    let others = plane.namespace("reserves-others").await;
    let admin = plane.client();
    let row = |namespace: &str, name: &str, address: &str, expected| {
        (namespace.to_owned(), service_at(name, address), expected)
    };
    let external = |namespace: &str, name: &str, address: &str, expected| {
        (namespace.to_owned(), unfenced_service(name, json!({"externalIPs": [address]})), expected)
    };
    let rows = [
        row(&namespace, "web", "172.21.20.7", "allowed"),
        row(&namespace, "other", "172.21.20.8", "allowed"),
        row(&namespace, "other", "172.21.20.7", "refused"),
        row(&others, "web", "172.21.20.7", "refused"),
        row(&others, "web", "172.21.20.8", "allowed"),
        external(&namespace, "web", "172.21.20.7", "allowed"),
        external(&namespace, "other", "172.21.20.8", "allowed"),
        external(&namespace, "other", "172.21.20.7", "refused"),
        external(&others, "web", "172.21.20.7", "refused"),
    ];
    let mut seen = Vec::new();
    for (namespace, service, expected) in rows {
        let outcome = outcome(dry_run(&admin, &namespace, &service).await);
        seen.push(Call { request: format!("{namespace}: {service}"), outcome, expected });
    }
    assert_calls(seen);
}

/// kube-proxy sends the traffic of an external address to the Pods of the Service, also if the address is a ClusterIP.
async fn address_of_a_pool_is_no_external_address_of_others(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "external-use").await;
    let (owner, of_owner) = tenant(plane, "external-owner").await;
    let cidrs = ["172.21.24.0/24", "fd00:21::e00/120"];
    plane.apply(&fenced_pool("ServicePool", "external-use", &cidrs, &owner).to_string()).await;
    until_refused(&client, &namespace, &service_at("web", "172.21.24.7")).await;

    let row = |annotations: Value, spec: Value, expected| {
        let mut service = annotated("web", annotations, spec);
        service["spec"]["clusterIP"] = json!(UNFENCED);
        (service, expected)
    };
    let external_ip = |address: &str, expected| row(json!({}), json!({"externalIPs": [address]}), expected);
    // `parser.rs` has the annotations, and the texts that a field can contain.
    let rows = [
        external_ip("172.21.24.7", "refused"),
        external_ip("172.21.25.7", "allowed"),
        external_ip("fd00:21::e07", "refused"),
        row(json!({}), json!({"type": "LoadBalancer", "loadBalancerIP": "172.21.24.7"}), "refused"),
        row(json!({"example.com/note": "172.21.24.7"}), json!({"type": "LoadBalancer"}), "allowed"),
    ];
    let mut seen = Vec::new();
    for (service, expected) in rows {
        let request = service.to_string();
        let result = outcome(dry_run(&client, &namespace, &service).await);
        seen.push(Call { request: request.clone(), outcome: result, expected });
        let result = outcome(dry_run(&of_owner, &owner, &service).await);
        seen.push(Call { request: format!("{request}, by the owner"), outcome: result, expected: "allowed" });
    }

    // Other programs read an annotation only if the Service is of type LoadBalancer.
    let annotation = json!({"metallb.io/loadBalancerIPs": "172.21.24.7"});
    create(&client, &namespace, &annotated("typed", annotation, json!({"clusterIP": "172.21.0.204"}))).await.unwrap();
    let balancer = json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": "example.com/none"}});
    let result = outcome(patch(&client, &namespace, "typed", balancer.clone()).await);
    seen.push(Call { request: "another type".to_owned(), outcome: result, expected: "refused" });

    create(&client, &namespace, &service("balanced", json!({"clusterIP": "172.21.0.205"}))).await.unwrap();
    patch(&client, &namespace, "balanced", balancer).await.unwrap();
    let status = format!("{}/status", path(&namespace, "balanced"));
    for (address, expected) in [("172.21.24.7", "refused"), ("203.0.113.7", "allowed")] {
        let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}});
        let result = outcome(send(&plane.client(), Method::PATCH, &status, &ingress).await);
        seen.push(Call { request: format!("a status with {address}"), outcome: result, expected });
    }
    assert_calls(seen);
}

/// If an edit made a pool unusable, the status has the version that stays in use. That of a ready pool does not count: it
/// is the version before an edit that the server has not read yet.
#[tokio::test]
async fn version_in_use_keeps_its_fence() {
    let plane = fenced().await;
    let (namespace, client) = tenant(&plane, "in-use").await;
    let (owner, of_owner) = tenant(&plane, "in-use-owner").await;
    let condition = |type_: &str, status: &str| {
        json!({"type": type_, "status": status, "reason": "Any", "message": "",
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    plane.apply(&fenced_pool("ServicePool", "in-use-edited", &["172.99.28.0/24"], &owner).to_string()).await;
    let ready = json!({"status": {"conditions": [condition("Ready", "True")], "inUse": {"cidrs": ["172.21.28.0/24"]}}});
    let (pool, ready) = ("servicepool/in-use-edited", ready.to_string());
    plane.kubectl(&["patch", pool, "--subresource=status", "--type=merge", "--patch", &ready]).await.ok();
    for (kind, old, new) in [
        ("ServicePool", ["172.21.26.0/24"], ["172.99.26.0/24"]),
        ("ExternalPool", ["198.19.6.0-198.19.6.255"], ["172.99.27.0/24"]),
    ] {
        plane.apply(&fenced_pool(kind, "in-use", &new, &owner).to_string()).await;
        let conditions = [condition("Stalled", "True"), condition("Ready", "False")];
        let mut status = json!({"status": {"conditions": conditions, "inUse": {"name": "in-use", "cidrs": old}}});
        if kind == "ServicePool" {
            let reservation = json!({"address": "172.21.26.20", "namespace": owner, "name": "web"});
            status["status"]["inUse"]["reservations"] = json!([reservation]);
        }
        // The fence would refuse every Service: its expressions can't read such a version.
        for wrong in [json!({"cidrs": 5}), json!({"cidrs": [5]}), json!({"reservations": [{"address": "a"}]})] {
            let status = json!({"status": {"inUse": wrong}}).to_string();
            let arguments = ["patch", kind, "in-use", "--subresource=status", "--type=merge", "--patch", &status];
            let patched = plane.kubectl(&arguments).await;
            assert!(patched.stderr.contains("status.inUse."), "{kind}, {status}: {}", patched.stderr);
        }
        let status = status.to_string();
        let arguments = ["patch", kind, "in-use", "--subresource=status", "--type=merge", "--patch", &status];
        plane.kubectl(&arguments).await.ok();
    }
    let external = |address: &str| unfenced_service("web", json!({"externalIPs": [address]}));
    until_refused(&client, &namespace, &service_at("web", "172.21.26.7")).await;
    until_refused(&client, &namespace, &external("198.19.6.7")).await;
    let rows = [
        (external("172.99.26.7"), "refused", "allowed"),
        (external("172.99.27.7"), "refused", "allowed"),
        (external("172.99.28.7"), "refused", "allowed"),
        (service_at("web", "172.21.28.7"), "allowed", "allowed"),
        (service_at("web", "172.21.26.7"), "refused", "allowed"),
        (service_at("web", "172.21.26.20"), "refused", "allowed"),
        (service_at("other", "172.21.26.20"), "refused", "refused"),
        (external("198.19.6.7"), "refused", "allowed"),
        (service_at("web", "172.21.29.7"), "allowed", "allowed"),
    ];
    let mut seen = Vec::new();
    for (service, by_other, by_owner) in rows {
        let result = outcome(dry_run(&client, &namespace, &service).await);
        seen.push(Call { request: service.to_string(), outcome: result, expected: by_other });
        let result = outcome(dry_run(&of_owner, &owner, &service).await);
        seen.push(Call { request: format!("{service}, by the owner"), outcome: result, expected: by_owner });
    }
    assert_calls(seen);
}

/// The server writes the ranges of the selected ServiceCIDR objects into the status of the pool.
#[tokio::test]
async fn pool_of_service_cidrs_has_the_ranges_of_its_status() {
    let plane = fenced().await;
    let (namespace, client) = tenant(&plane, "selected").await;
    let spec = json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}, "fence": "Deny",
        "match": {"namespaces": ["another-team"]}});
    plane.apply(&pool("ServicePool", "selected", spec).to_string()).await;
    dry_run(&client, &namespace, &service_at("web", "172.21.16.7")).await.unwrap();
    let status = r#"{"status": {"ranges": ["172.21.16.0/24", "not a range"]}}"#;
    let arguments = ["patch", "servicepool", "selected", "--subresource=status", "--type=merge", "--patch", status];
    plane.kubectl(&arguments).await.ok();
    until_refused(&client, &namespace, &service_at("web", "172.21.16.7")).await;
    dry_run(&client, &namespace, &service_at("web", "172.21.17.7")).await.unwrap();
}

/// The API server creates this Service itself, and would have no address for its clients otherwise.
async fn service_of_the_api_server_is_exempt(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "beside-kubernetes").await;
    plane.apply(&fenced_pool("ServicePool", "first", &["172.21.0.0/29"], "another-team").to_string()).await;
    until_refused(&client, &namespace, &service_at("web", "172.21.0.7")).await;
    // In a dry run, the API server does not pick an address, but shows the first one of the range.
    dry_run(&client, &namespace, &service("web", json!({}))).await.unwrap();
    let admin = plane.client();
    // Nobody else may use the name of this Service to get an address of the pool.
    let by_hand = dry_run(&admin, "default", &service_at("kubernetes", "172.21.0.6")).await.unwrap_err();
    assert!(by_hand.contains("172.21.0.6 lies in ServicePool \"first\""), "{by_hand}");
    let kubernetes = path("default", "kubernetes");
    let read = async || send(&admin, Method::GET, &kubernetes, &json!(null)).await;
    let before = read().await.unwrap()["metadata"]["uid"].clone();
    send(&admin, Method::DELETE, &kubernetes, &json!(null)).await.unwrap();
    let after = eventually("the API server to create its Service again", async || {
        read().await.ok().filter(|service| service["metadata"]["uid"] != before)
    })
    .await;
    assert_eq!(after["spec"]["clusterIP"], "172.21.0.1");
}

/// The old address of a Service may be in a pool that no longer admits the Service, and the new one may be reserved for
/// the Service.
async fn temporary_services_of_a_seamless_move_may_have_the_addresses_of_the_service(plane: &Fenced) {
    const LABEL: &str = "clusterip-policy/temporary";
    let (namespace, mallory) = tenant(plane, "temporary").await;
    let reservation = json!({"address": "172.21.21.7", "namespace": namespace, "name": "web"});
    let reserves = json!({"cidrs": ["172.21.21.0/24"], "fence": "Deny", "reservations": [reservation]});
    plane.apply(&pool("ServicePool", "temporary-reserves", reserves).to_string()).await;
    plane.apply(&fenced_pool("ServicePool", "temporary-old", &["172.21.22.0/24"], "another-team").to_string()).await;
    let (reserved, old) = ("172.21.21.7", "172.21.22.7");
    until_refused(&mallory, &namespace, &service_at("trial", reserved)).await;
    until_refused(&mallory, &namespace, &service_at("trial", old)).await;

    let temporary = |address: &str| {
        let mut service = service_at("clusterip-old-0123456789", address);
        service["metadata"]["labels"][LABEL] = json!("old");
        service
    };
    let admin = plane.client();
    let rows = [
        ("reserved, by an administrator", &admin, temporary(reserved), "allowed"),
        ("another pool, by an administrator", &admin, temporary(old), "allowed"),
        ("another pool, without the label", &admin, service_at("web-2", old), "refused"),
        ("reserved, by a tenant", &mallory, temporary(reserved), "refused"),
        ("another pool, by a tenant", &mallory, temporary(old), "refused"),
    ];
    let mut calls = Vec::new();
    for (name, client, service, expected) in rows {
        let outcome = outcome(dry_run(client, &namespace, &service).await);
        calls.push(Call { request: name.to_owned(), outcome, expected });
    }
    assert_calls(calls);
}

/// The API server stores any `clusterIP` of an ExternalName Service, and fills in its `clusterIPs` before it evaluates the
/// fence.
async fn address_that_an_external_name_service_keeps_is_new_when_it_becomes_a_cluster_ip(plane: &Fenced) {
    let (namespace, mallory) = tenant(plane, "leftover").await;
    plane.apply(&fenced_pool("ServicePool", "leftover", &["172.21.34.0/24"], "another-team").to_string()).await;
    until_refused(&mallory, &namespace, &service_at("trial", "172.21.34.7")).await;
    let mut calls = Vec::new();
    for (name, own, left, expected) in [
        ("plain", "172.21.35.1", "172.21.34.8", "refused"),
        ("leading-zeros", "172.21.35.2", "172.021.034.009", "refused"),
        ("mapped", "172.21.35.3", "::ffff:172.21.34.10", "refused"),
        ("own", "172.21.35.4", "172.21.35.4", "allowed"),
    ] {
        create(&mallory, &namespace, &service_at(name, own)).await.unwrap();
        let mut alias =
            service(name, json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": left}));
        alias["metadata"]["namespace"] = namespace.as_str().into();
        send(&mallory, Method::PUT, &path(&namespace, name), &alias).await.unwrap();
        let back = json!({"spec": {"type": "ClusterIP", "externalName": null}});
        let result = patch(&mallory, &namespace, name, back).await;
        calls.push(Call { request: format!("{name}: {left}"), outcome: outcome(result), expected });
    }
    assert_calls(calls);
}
