//! The policies of `deploy/fence`, as they are shipped, without any server: the API server keeps the addresses of a pool
//! for the Services that the pool admits. All tests share one control plane, and have pools of their own.

use axum::http::{Method, Request};
use futures::stream::{self, StreamExt as _};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::move_helpers::path;
use crate::support::pools::pool;
use crate::support::service_webhook_rules::{Call, assert_calls};
use crate::support::webhook_cluster::{addresses, annotated, message, service, within};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The text that identifies a refusal of a policy.
const BY_POLICY: &str = ".clusterip-policy.io' denied request";

/// A ClusterIP for dry runs. It is in no pool, and in the static band, where the API server picks no addresses.
const UNFENCED: &str = "172.21.0.200";

/// How many requests run at once.
const AT_ONCE: usize = 16;

/// A dual-stack control plane with the custom resources and the policies.
async fn fenced() -> &'static ControlPlane {
    static FENCED: OnceCell<ControlPlane> = OnceCell::const_new();
    FENCED
        .get_or_init(async || {
            let plane = ControlPlane::start(Options { audit: false, ..Options::dual_stack() });
            plane.install_pools().await;
            plane.kubectl(&["apply", "-k", &format!("{ROOT}/deploy/fence")]).await.ok();
            plane
        })
        .await
}

/// A pool that refuses the Services of every namespace except this one.
fn pool_of(kind: &str, name: &str, cidrs: &[&str], namespace: &str) -> Value {
    pool(kind, name, json!({"cidrs": cidrs, "fence": "Deny", "match": {"namespaces": [namespace]}}))
}

/// A Service with a ClusterIP that was set by hand.
fn at(name: &str, address: &str) -> Value {
    service(name, json!({"clusterIP": address}))
}

/// A Service with this spec merged in, and a ClusterIP in no pool.
fn unfenced(name: &str, spec: Value) -> Value {
    let mut service = service(name, spec);
    service["spec"]["clusterIP"] = json!(UNFENCED);
    service
}

async fn send(client: &Client, method: Method, path: &str, body: &Value) -> Result<Value, String> {
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
    let request = Request::builder().method(method).uri(path).header("content-type", kind).body(body).unwrap();
    client.request(request).await.map_err(|error| message(&error))
}

async fn create(client: &Client, namespace: &str, service: &Value) -> Result<Value, String> {
    send(client, Method::POST, &format!("/api/v1/namespaces/{namespace}/services"), service).await
}

async fn dry_run(client: &Client, namespace: &str, service: &Value) -> Result<Value, String> {
    send(client, Method::POST, &format!("/api/v1/namespaces/{namespace}/services?dryRun=All"), service).await
}

async fn patch(client: &Client, namespace: &str, name: &str, patch: Value) -> Result<Value, String> {
    send(client, Method::PATCH, &path(namespace, name), &patch).await
}

/// `allowed`, `refused` by a policy, or another error.
fn outcome(result: Result<Value, String>) -> String {
    match result {
        Ok(_) => "allowed".to_owned(),
        Err(message) if message.contains(BY_POLICY) => "refused".to_owned(),
        Err(message) => message,
    }
}

/// Waits until a policy refuses this Service.
async fn refused(client: &Client, namespace: &str, service: &Value) {
    eventually("the pool to be in force", async || {
        (outcome(dry_run(client, namespace, service).await) == "refused").then_some(())
    })
    .await;
}

/// A namespace, and a client of the user of the same name, who may write every Service of the namespace.
async fn tenant(plane: &ControlPlane, name: &str) -> (String, Client) {
    let namespace = plane.namespace(name).await;
    let group = "rbac.authorization.k8s.io";
    let api_version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({"name": "edit", "namespace": namespace});
    let verbs = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let rules = json!([{"apiGroups": [""], "resources": ["services"], "verbs": verbs}]);
    let role = json!({"apiVersion": api_version, "kind": "Role", "metadata": metadata, "rules": rules});
    let binding = json!({"apiVersion": api_version, "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "edit"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": namespace}]});
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]}).to_string()).await;
    let client = plane.client_as(&namespace);
    eventually("the permissions of a tenant", async || {
        dry_run(&client, &namespace, &service("trial", json!({"clusterIP": "None"}))).await.ok()
    })
    .await;
    (namespace, client)
}

#[tokio::test]
async fn thousand_creates_of_a_tenant_get_no_address_of_another_team() {
    const RANGE: &str = "172.21.8.0/22";
    let plane = fenced().await;
    plane.namespace("blue").await;
    plane.apply(&pool_of("ServicePool", "blue", &[RANGE], "blue").to_string()).await;
    let (namespace, mallory) = tenant(plane, "mallory").await;
    refused(&mallory, &namespace, &at("trial", "172.21.8.1")).await;

    let address = |nth: usize| format!("172.21.{}.{}", 8 + nth / 250, 1 + nth % 250);
    let creates = stream::iter(0..1000).map(async |nth| {
        let name = format!("web-{nth}");
        create(&mallory, &namespace, &at(&name, &address(nth))).await
    });
    let results: Vec<_> = creates.buffer_unordered(AT_ONCE).collect().await;
    let expected = "lies in ServicePool \"blue\", which does not admit this Service of namespace mallory: \
                    match.namespaces does not match; choose another address, or remove spec.clusterIP and create the \
                    Service again";
    let others: Vec<_> =
        results.into_iter().filter(|result| !result.as_ref().is_err_and(|error| error.contains(expected))).collect();
    assert!(others.is_empty(), "{others:?}");

    // The API server may pick an address of this or another pool by itself; then it refuses the Service.
    let picks = stream::iter(0..100).map(async |nth| {
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
    create(&plane.client(), "blue", &at("web", "172.21.8.7")).await.unwrap();
}

/// A pool, and a Service that gets an address of the pool.
struct Admission {
    name: &'static str,
    matches: Value,
    service_labels: Value,
    expected: &'static str,
}

fn admissions(namespace: &str) -> Vec<Admission> {
    let front = || json!({"tier": "front"});
    let row = |name, matches, expected| Admission { name, matches, service_labels: front(), expected };
    let on_namespace = |selector: Value| json!({"namespaceSelector": selector});
    let on_service = |selector: Value| json!({"serviceSelector": selector});
    let requirement = |key: &str, operator: &str, values: &[&str]| {
        let mut requirement = json!({"key": key, "operator": operator});
        if !values.is_empty() {
            requirement["values"] = json!(values);
        }
        json!({"matchExpressions": [requirement]})
    };
    vec![
        row("no condition", json!({}), "allowed"),
        row("its namespace", json!({"namespaces": ["other", namespace]}), "allowed"),
        row("no namespace", json!({"namespaces": []}), "allowed"),
        row("another namespace", json!({"namespaces": ["other"]}), "refused"),
        row("nodes", json!({"os": "windows", "nodeLabels": {"disk": "ssd"}}), "allowed"),
        row("a label of its namespace", on_namespace(json!({"matchLabels": {"team": "a"}})), "allowed"),
        row("another label of its namespace", on_namespace(json!({"matchLabels": {"team": "b"}})), "refused"),
        row("an absent label of its namespace", on_namespace(json!({"matchLabels": {"stage": "a"}})), "refused"),
        row(
            "the name of its namespace as a label",
            on_namespace(json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}})),
            "allowed",
        ),
        row("In", on_namespace(requirement("team", "In", &["b", "a"])), "allowed"),
        row("In other values", on_namespace(requirement("team", "In", &["b"])), "refused"),
        row("In of an absent label", on_namespace(requirement("stage", "In", &["a"])), "refused"),
        row("NotIn", on_namespace(requirement("team", "NotIn", &["b", "a"])), "refused"),
        row("NotIn other values", on_namespace(requirement("team", "NotIn", &["b"])), "allowed"),
        row("NotIn of an absent label", on_namespace(requirement("stage", "NotIn", &["a"])), "allowed"),
        row("Exists", on_namespace(requirement("team", "Exists", &[])), "allowed"),
        row("Exists of an absent label", on_namespace(requirement("stage", "Exists", &[])), "refused"),
        row("DoesNotExist", on_namespace(requirement("team", "DoesNotExist", &[])), "refused"),
        row("DoesNotExist of an absent label", on_namespace(requirement("stage", "DoesNotExist", &[])), "allowed"),
        row("a label of the Service", on_service(json!({"matchLabels": {"tier": "front"}})), "allowed"),
        row("another label of the Service", on_service(json!({"matchLabels": {"tier": "back"}})), "refused"),
        row("In, of the Service", on_service(requirement("tier", "In", &["front"])), "allowed"),
        row("NotIn, of the Service", on_service(requirement("tier", "NotIn", &["front"])), "refused"),
        row("Exists, of the Service", on_service(requirement("tier", "Exists", &[])), "allowed"),
        row("DoesNotExist, of the Service", on_service(requirement("tier", "DoesNotExist", &[])), "refused"),
        Admission {
            name: "a Service without labels",
            matches: on_service(json!({"matchLabels": {"tier": "front"}})),
            service_labels: json!(null),
            expected: "refused",
        },
        row(
            "one of two conditions",
            json!({"namespaces": [namespace], "serviceSelector": {"matchLabels": {"tier": "back"}}}),
            "refused",
        ),
    ]
}

#[tokio::test]
async fn pools_of_both_kinds_admit_by_namespaces_and_labels() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "admitted").await;
    plane.kubectl(&["label", "namespace", &namespace, "team=a"]).await.ok();
    let rows = admissions(&namespace);
    let mut pools = Vec::new();
    for (nth, row) in rows.iter().enumerate() {
        let spec = |cidr: String| json!({"cidrs": [cidr], "fence": "Deny", "match": row.matches});
        pools.push(pool("ServicePool", &format!("row-{nth}"), spec(format!("172.21.{}.0/24", 32 + nth))));
        let mut external = spec(format!("198.18.{nth}.0/24"));
        // An ExternalPool has no conditions about nodes.
        external["match"].as_object_mut().unwrap().retain(|name, _| !["os", "nodeLabels"].contains(&name.as_str()));
        pools.push(pool("ExternalPool", &format!("row-{nth}"), external));
    }
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": pools}).to_string()).await;
    // A policy sees the pools of a kind in the order in which they were written, so it has seen the other ones.
    for (kind, cidr) in [("ServicePool", "172.21.31.0/24"), ("ExternalPool", "198.18.255.0/24")] {
        plane.apply(&pool_of(kind, "row-last", &[cidr], "nobody").to_string()).await;
    }
    refused(&client, &namespace, &at("last", "172.21.31.7")).await;
    refused(&client, &namespace, &unfenced("last", json!({"externalIPs": ["198.18.255.7"]}))).await;

    let mut seen = Vec::new();
    for (nth, row) in rows.iter().enumerate() {
        let specs = [
            ("ServicePool", json!({"clusterIP": format!("172.21.{}.7", 32 + nth)})),
            ("ExternalPool", json!({"clusterIP": UNFENCED, "externalIPs": [format!("198.18.{nth}.7")]})),
        ];
        for (kind, spec) in specs {
            let mut service = service("web", spec);
            service["metadata"]["labels"] = row.service_labels.clone();
            let outcome = outcome(dry_run(&client, &namespace, &service).await);
            seen.push(Call { request: format!("{kind}: {}", row.name), outcome, expected: row.expected });
        }
    }
    assert_calls(seen);
}

/// A change of a Service.
struct Change<'a> {
    name: &'static str,
    namespace: &'a str,
    patch: Value,
    expected: &'static str,
}

#[tokio::test]
async fn service_keeps_the_addresses_that_it_has() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "keeps").await;
    let mut old = at("old", "172.21.0.65");
    old["spec"]["externalIPs"] = json!(["198.19.1.7"]);
    old["metadata"]["annotations"] = json!({"metallb.io/loadBalancerIPs": "198.19.1.8"});
    create(&client, &namespace, &old).await.unwrap();
    plane.apply(&pool_of("ServicePool", "keeps", &["172.21.0.64/29"], "nobody").to_string()).await;
    plane.apply(&pool_of("ExternalPool", "keeps", &["198.19.1.0/24"], "nobody").to_string()).await;
    refused(&client, &namespace, &at("new", "172.21.0.66")).await;
    refused(&client, &namespace, &unfenced("new", json!({"externalIPs": ["198.19.1.9"]}))).await;

    let row = |name, patch, expected| Change { name, namespace: &namespace, patch, expected };
    let rows = [
        row("a label", json!({"metadata": {"labels": {"changed": "yes"}}}), "allowed"),
        row("an annotation", json!({"metadata": {"annotations": {"changed": "yes"}}}), "allowed"),
        row("a port", json!({"spec": {"ports": [{"port": 81}]}}), "allowed"),
        row("one more address of its own", json!({"spec": {"externalIPs": ["198.19.1.7", "203.0.113.7"]}}), "allowed"),
        row("one more address of the pool", json!({"spec": {"externalIPs": ["198.19.1.7", "198.19.1.9"]}}), "refused"),
        // An address counts where it is: an annotation that nothing reads must not become a claim.
        row("its address elsewhere", json!({"spec": {"externalIPs": ["198.19.1.7", "198.19.1.8"]}}), "refused"),
        row("one address less", json!({"spec": {"externalIPs": []}}), "allowed"),
        row(
            "no address",
            json!({"spec": {"type": "ExternalName", "externalName": "a.example", "clusterIP": null,
            "clusterIPs": null}}),
            "allowed",
        ),
        row(
            "its old address",
            json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "172.21.0.65",
            "clusterIPs": ["172.21.0.65"]}}),
            "refused",
        ),
    ];
    let mut seen = Vec::new();
    for Change { name, namespace, patch: change, expected } in rows {
        let outcome = outcome(patch(&client, namespace, "old", change).await);
        seen.push(Call { request: name.to_owned(), outcome, expected });
    }
    assert_calls(seen);
}

#[tokio::test]
async fn both_families_count() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "families").await;
    plane.apply(&pool_of("ServicePool", "families", &["fd00:21::f00/120"], "nobody").to_string()).await;
    let dual = |second: &str| {
        service(
            "web",
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "172.21.13.7",
            "clusterIPs": ["172.21.13.7", second]}),
        )
    };
    refused(&client, &namespace, &dual("fd00:21::f07")).await;
    let error = dry_run(&client, &namespace, &dual("fd00:21::f07")).await.unwrap_err();
    assert!(error.contains("fd00:21::f07 lies in ServicePool \"families\""), "{error}");
    dry_run(&client, &namespace, &dual("fd00:21::e07")).await.unwrap();
    dry_run(&client, &namespace, &service("headless", json!({"clusterIP": "None"}))).await.unwrap();
}

#[tokio::test]
async fn warn_lets_the_service_through_with_a_warning() {
    let plane = fenced().await;
    let namespace = plane.namespace("warned").await;
    let only_others = |cidr: &str| json!({"cidrs": [cidr], "fence": "Warn", "match": {"namespaces": ["nobody"]}});
    plane.apply(&pool("ServicePool", "warned", only_others("172.21.14.0/24")).to_string()).await;
    plane.apply(&pool("ExternalPool", "warned", only_others("198.19.2.0/24")).to_string()).await;
    let rows = [
        (
            json!({"clusterIP": "172.21.14.7"}),
            "Warning: Validation failed for ValidatingAdmissionPolicy \
            'service-fence-warning.clusterip-policy.io' with binding 'service-fence-warning.clusterip-policy.io': \
            172.21.14.7 lies in ServicePool \"warned\", which does not admit this Service of namespace warned",
        ),
        (
            json!({"clusterIP": UNFENCED, "externalIPs": ["198.19.2.7"]}),
            "Warning: Validation failed for ValidatingAdmissionPolicy \
            'external-fence-warning.clusterip-policy.io' with binding 'external-fence-warning.clusterip-policy.io': \
            spec.externalIPs: 198.19.2.7 lies in ExternalPool \"warned\", which does not admit this Service of \
            namespace warned",
        ),
    ];
    for (spec, expected) in rows {
        let web = service("web", spec).to_string();
        let arguments = ["create", "--dry-run=server", "--namespace", namespace.as_str(), "--filename", "-"];
        eventually(expected, async || {
            let created = plane.kubectl_with(&arguments, &web).await;
            assert_eq!(created.status, 0, "{}", created.stderr);
            created.stderr.contains(expected).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn edit_of_a_pool_takes_effect() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "edited").await;
    let web = at("web", "172.21.15.7");
    let comes = async |expected: &'static str| {
        eventually(expected, async || (outcome(dry_run(&client, &namespace, &web).await) == expected).then_some(()))
            .await;
    };
    plane.apply(&pool_of("ServicePool", "edited", &["172.21.15.0/24"], "nobody").to_string()).await;
    comes("refused").await;
    plane.apply(&pool_of("ServicePool", "edited", &["172.21.15.0/24"], &namespace).to_string()).await;
    comes("allowed").await;
    plane.apply(&pool_of("ServicePool", "edited", &["172.21.15.0/24"], "nobody").to_string()).await;
    comes("refused").await;
    let off = r#"{"spec": {"fence": "Off"}}"#;
    plane.kubectl(&["patch", "servicepool", "edited", "--type=merge", "--patch", off]).await.ok();
    comes("allowed").await;
    let deny = r#"{"spec": {"fence": "Deny"}}"#;
    plane.kubectl(&["patch", "servicepool", "edited", "--type=merge", "--patch", deny]).await.ok();
    comes("refused").await;
    plane.kubectl(&["delete", "servicepool", "edited"]).await.ok();
    comes("allowed").await;
}

#[tokio::test]
async fn reserved_address_is_kept_for_its_service() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "reserves").await;
    let reservation = json!({"address": "172.21.20.7", "namespace": namespace, "name": "web"});
    let spec = json!({"cidrs": ["172.21.20.0/24"], "fence": "Deny", "reservations": [reservation]});
    plane.apply(&pool("ServicePool", "reserves", spec).to_string()).await;
    refused(&client, &namespace, &at("other", "172.21.20.7")).await;

    let others = plane.namespace("reserves-others").await;
    let admin = plane.client();
    let row =
        |namespace: &str, name: &str, address: &str, expected| (namespace.to_owned(), at(name, address), expected);
    let rows = [
        row(&namespace, "web", "172.21.20.7", "allowed"),
        row(&namespace, "other", "172.21.20.8", "allowed"),
        row(&namespace, "other", "172.21.20.7", "refused"),
        row(&others, "web", "172.21.20.7", "refused"),
        row(&others, "web", "172.21.20.8", "allowed"),
    ];
    let mut seen = Vec::new();
    for (namespace, service, expected) in rows {
        let outcome = outcome(dry_run(&admin, &namespace, &service).await);
        seen.push(Call { request: format!("{namespace}: {service}"), outcome, expected });
    }
    assert_calls(seen);
}

/// The server writes the ranges of the selected ServiceCIDR objects into the status of the pool.
#[tokio::test]
async fn pool_of_service_cidrs_has_the_ranges_of_its_status() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "selected").await;
    let spec = json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}, "fence": "Deny",
        "match": {"namespaces": ["nobody"]}});
    plane.apply(&pool("ServicePool", "selected", spec).to_string()).await;
    dry_run(&client, &namespace, &at("web", "172.21.16.7")).await.unwrap();
    let status = r#"{"status": {"ranges": ["172.21.16.0/24", "not a range"]}}"#;
    let arguments = ["patch", "servicepool", "selected", "--subresource=status", "--type=merge", "--patch", status];
    plane.kubectl(&arguments).await.ok();
    refused(&client, &namespace, &at("web", "172.21.16.7")).await;
    dry_run(&client, &namespace, &at("web", "172.21.17.7")).await.unwrap();
}

/// The API server creates this Service itself, and would have no address for its clients otherwise.
#[tokio::test]
async fn service_of_the_api_server_is_exempt() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "beside-kubernetes").await;
    plane.apply(&pool_of("ServicePool", "first", &["172.21.0.0/29"], "nobody").to_string()).await;
    refused(&client, &namespace, &at("web", "172.21.0.7")).await;
    // In a dry run, the API server does not pick an address, but shows the first one of the range.
    dry_run(&client, &namespace, &service("web", json!({}))).await.unwrap();
    let admin = plane.client();
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

/// A Service that claims an external address.
struct Claim {
    name: &'static str,
    annotations: Value,
    spec: Value,
    expected: &'static str,
}

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
        load_balancer_ip("another address", "203.0.113.7", "allowed"),
        load_balancer_ip("a name", "lb.example.com", "allowed"),
        load_balancer_ip("leading zeros", "192.000.002.020", "refused"),
        load_balancer_ip("IPv4 as IPv6", "::ffff:192.0.2.20", "refused"),
        load_balancer_ip("IPv4 as hexadecimal IPv6", "::FFFF:c000:214", "refused"),
        annotation("metallb.io/loadBalancerIPs", "192.0.2.20", "refused"),
        annotation("metallb.io/loadBalancerIPs", "203.0.113.7 , 192.0.2.20", "refused"),
        annotation("metallb.io/loadBalancerIPs", "192.000.002.020", "refused"),
        annotation("metallb.io/loadBalancerIPs", "203.0.113.7,auto,,", "allowed"),
        annotation("metallb.universe.tf/loadBalancerIPs", "192.0.2.20", "refused"),
        annotation("lbipam.cilium.io/ips", "192.0.2.20", "refused"),
        annotation("io.cilium/lb-ipam-ips", "192.0.2.20", "refused"),
        annotation("kube-vip.io/loadbalancerIPs", "192.0.2.20", "refused"),
        annotation("clusterip-policy/external-address", "192.0.2.20", "refused"),
        annotation("clusterip-policy/external-addresses", "192.0.2.20", "refused"),
        annotation("example.com/note", "192.0.2.20", "allowed"),
    ]
}

#[tokio::test]
async fn external_addresses_of_a_pool_can_not_be_claimed_from_outside() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "outside").await;
    let (owner, of_owner) = tenant(plane, "owner").await;
    let cidrs = ["192.0.2.16/28", "10.0.9.10-10.0.10.5", "fd00:9::10 - fd00:9::1:40", "fd00:8::/64"];
    plane.apply(&pool_of("ExternalPool", "edge", &cidrs, &owner).to_string()).await;
    refused(&client, &namespace, &unfenced("web", json!({"externalIPs": ["192.0.2.20"]}))).await;
    let mut seen = Vec::new();
    for Claim { name, annotations, spec, expected } in claims() {
        let request = format!("{name}: {annotations} {spec}");
        let mut web = annotated("web", annotations, spec);
        web["spec"]["clusterIP"] = json!(UNFENCED);
        let result = outcome(dry_run(&client, &namespace, &web).await);
        seen.push(Call { request: request.clone(), outcome: result, expected });
        // Since Kubernetes 1.36, the API server itself refuses texts that are not canonical in some fields.
        if !request.contains("::ffff") && !request.contains("::FFFF") && !request.contains("000") {
            let result = outcome(dry_run(&of_owner, &owner, &web).await);
            seen.push(Call { request: format!("{request}, by the owner"), outcome: result, expected: "allowed" });
        }
    }
    assert_calls(seen);
    // Each of these texts is another one for 192.0.2.20. Before Kubernetes 1.36, the API server accepts them.
    for text in ["192.000.002.020", "::ffff:192.0.2.20", "::ffff:c000:214", "0:0:0:0:0:FFFF:192.0.2.20"] {
        let result = dry_run(&client, &namespace, &unfenced("web", json!({"externalIPs": [text]}))).await;
        assert!(result.is_err(), "{text}: {result:?}");
    }
}

#[tokio::test]
async fn load_balancer_writes_no_address_of_a_pool_into_the_status_of_another_service() {
    let plane = fenced().await;
    let (namespace, client) = tenant(plane, "balanced").await;
    let (owner, of_owner) = tenant(plane, "balanced-owner").await;
    for (namespace, client, address) in [(&namespace, &client, "172.21.0.201"), (&owner, &of_owner, "172.21.0.202")] {
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/none", "clusterIP": address});
        create(client, namespace, &service("web", spec)).await.unwrap();
    }
    plane.apply(&pool_of("ExternalPool", "balanced", &["198.19.3.0/24"], &owner).to_string()).await;
    refused(&client, &namespace, &unfenced("trial", json!({"externalIPs": ["198.19.3.7"]}))).await;
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
