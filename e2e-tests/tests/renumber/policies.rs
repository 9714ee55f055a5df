//! The policies of `deploy/renumbering`: what users and the account of the renumbering can't do during one.

use axum::http::Method;
use kube::Client;
use serde_json::{Value, json};

use crate::support::control_plane::{ControlPlane, Options, request};
use crate::support::eventually::eventually;
use crate::support::move_helpers::send;

pub const NAMESPACE: &str = "clusterip-policy";
pub const ACCOUNT: &str = "clusterip-renumbering";
/// The account of `clusterip renumber keep`.
pub const KEEP_ACCOUNT: &str = "clusterip-renumbering-keep";

async fn deployed() -> ControlPlane {
    let options = Options { service_ranges: vec!["10.96.0.0/24".to_owned()], ..Options::default() };
    let plane = ControlPlane::start(options);
    install(&plane).await;
    plane
}

/// Installs the definitions of pools, and `deploy/renumbering` without its Deployment.
pub async fn install(plane: &ControlPlane) {
    plane.install_pools().await;
    plane.namespace(NAMESPACE).await;
    for file in ["account.yaml", "account-writes.yaml", "old-addresses.yaml"] {
        let file = format!("{}/../deploy/renumbering/{file}", env!("CARGO_MANIFEST_DIR"));
        plane.apply(&std::fs::read_to_string(file).unwrap()).await;
    }
}

const DNS: [&str; 4] = ["kube-dns", "kube-dns-upstream", "coredns", "rke2-coredns-rke2-coredns"];

/// `allowed`, the name of the policy that refuses the request, `no permission`, or another error.
pub async fn tried(client: &Client, method: Method, path: &str, body: Value) -> String {
    match client.request::<Value>(request(method, path, &body)).await {
        Ok(_) => "allowed".to_owned(),
        Err(kube::Error::Api(status)) if status.message.contains(" cannot ") => "no permission".to_owned(),
        Err(kube::Error::Api(status)) => {
            let policy = status.message.split_once("ValidatingAdmissionPolicy '").map(|(_, rest)| rest);
            policy.and_then(|rest| rest.split('.').next()).map_or(status.message.clone(), str::to_owned)
        }
        Err(error) => error.to_string(),
    }
}

fn service(name: &str, labels: Value, spec: Value) -> Value {
    let mut service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": labels},
        "spec": {"ports": [{"port": 80}]}});
    json_patch::merge(&mut service["spec"], &spec);
    service
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_take_no_old_address_and_no_alias_during_a_renumbering() {
    let plane = deployed().await;
    let namespace = plane.namespace("shop").await;
    let tenant = plane.service_account(&namespace, "mallory").await;
    let rules = || json!([{"apiGroups": [""], "resources": ["services", "configmaps"], "verbs": ["*"]}]);
    plane.grant(&tenant, Some(&namespace), rules()).await;
    let client = plane.client_as(&tenant);
    let services = format!("/api/v1/namespaces/{namespace}/services");
    let dry = format!("{services}?dryRun=All");
    let old = || service("mine", json!({}), json!({"clusterIP": "10.96.0.9"}));
    assert_eq!(tried(&client, Method::POST, &dry, old()).await, "allowed", "without a renumbering");
    // Services that exist keep their addresses.
    let kept = service("kept", json!({}), json!({"clusterIP": "10.96.0.10"}));
    assert_eq!(tried(&client, Method::POST, &services, kept).await, "allowed");
    let alias = || service("alias", json!({"clusterip-policy/alias": "web"}), json!({}));
    let in_default = "/api/v1/namespaces/default/services";
    for services in [services.as_str(), in_default] {
        assert_eq!(tried(&plane.client(), Method::POST, services, alias()).await, "allowed");
    }
    plane.grant(&tenant, Some("default"), rules()).await;

    let record = |namespace: &str, ranges: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "clusterip-renumbering", "namespace": namespace}, "data": {"oldRanges": ranges}})
    };
    // A record that the tenant writes means nothing.
    plane.apply(&record(&namespace, "").to_string()).await;
    // The second one is an address that default/kubernetes will get. Both ranges are in the static band: otherwise the API
    // server could pick one of their addresses for a Service that asks for none.
    plane.apply(&record(NAMESPACE, "10.96.0.8/29,10.96.0.3/32").to_string()).await;
    eventually("the policy to be in force", async || {
        (tried(&client, Method::POST, &dry, old()).await == "old-addresses").then_some(())
    })
    .await;
    // Field owners that the tenant makes up hide nothing.
    for owners in [json!([]), json!([{}]), json!([{"manager": "a", "operation": "Update", "apiVersion": "v1"}])] {
        let mut hidden = old();
        hidden["metadata"]["managedFields"] = owners.clone();
        assert_eq!(tried(&client, Method::POST, &dry, hidden).await, "old-addresses", "{owners}");
    }
    let label = json!({"metadata": {"labels": {"clusterip-policy/alias": "web"}}});
    let path = |name: &str| format!("{services}/{name}?dryRun=All");
    let plain = json!({"metadata": {"annotations": {"a": "b"}}});
    let rows = [
        ("an address of another range", Method::POST, dry.clone(), service("mine", json!({}), json!({})), "allowed"),
        ("its own Service", Method::PATCH, path("kept"), plain.clone(), "allowed"),
        ("the label of aliases", Method::PATCH, path("kept"), label, "old-addresses"),
        ("an alias", Method::PATCH, path("alias"), plain, "old-addresses"),
        (
            "the deletion of an alias",
            Method::DELETE,
            format!("{in_default}/alias?dryRun=All"),
            Value::Null,
            "old-addresses",
        ),
        ("the deletion of what is no alias", Method::DELETE, path("alias"), Value::Null, "allowed"),
        (
            "a new address of default/kubernetes",
            Method::POST,
            dry.clone(),
            service("mine", json!({}), json!({"clusterIP": "10.96.0.3"})),
            "old-addresses",
        ),
        (
            "its neighbour",
            Method::POST,
            dry.clone(),
            service("mine", json!({}), json!({"clusterIP": "10.96.0.4"})),
            "allowed",
        ),
        ("its own Service", Method::DELETE, path("kept"), Value::Null, "allowed"),
    ];
    for (name, method, path, body, expected) in rows {
        assert_eq!(tried(&client, method, &path, body).await, expected, "{name}");
    }
    assert_eq!(tried(&plane.client(), Method::POST, &dry, old()).await, "allowed", "an administrator");
    // The API server stores any clusterIP of an ExternalName Service.
    for (name, own, left, expected) in [
        ("plain", "10.96.0.41", "10.96.0.9", "old-addresses"),
        ("leading-zeros", "10.96.0.42", "010.096.000.009", "old-addresses"),
        ("mapped", "10.96.0.43", "::ffff:10.96.0.9", "old-addresses"),
        ("own", "10.96.0.44", "10.96.0.44", "allowed"),
    ] {
        let other = json!([{"manager": "a", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:annotations": {}}}}]);
        for owners in [Value::Null, other] {
            let path = format!("{services}/{name}");
            let mine = service(name, json!({}), json!({"clusterIP": own}));
            assert_eq!(tried(&client, Method::POST, &services, mine).await, "allowed", "{name}");
            let spec = json!({"type": "ExternalName", "externalName": "example.com", "clusterIP": left});
            let mut prepared = service(name, json!({}), spec);
            prepared["metadata"]["namespace"] = json!(namespace);
            assert_eq!(tried(&client, Method::PUT, &path, prepared).await, "allowed", "{name}");
            let mut back = json!({"spec": {"type": "ClusterIP", "externalName": null}});
            if owners != Value::Null {
                back["metadata"]["managedFields"] = owners.clone();
            }
            assert_eq!(tried(&client, Method::PATCH, &path, back).await, expected, "{name} {owners}");
            assert_eq!(tried(&client, Method::DELETE, &path, Value::Null).await, "allowed", "{name}");
        }
    }
}

const REFUSED: &str = "renumbering-account";
const NO_PERMISSION: &str = "no permission";

/// The path for an object that is not stored.
fn post(group: &str, namespace: &str, plural: &str) -> String {
    match namespace {
        "" => format!("{group}/{plural}?dryRun=All"),
        namespace => format!("{group}/namespaces/{namespace}/{plural}?dryRun=All"),
    }
}

fn slice(name: &str, service: &str, labels: Value) -> Value {
    let mut slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "endpoints": [], "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}}});
    json_patch::merge(&mut slice["metadata"]["labels"], &labels);
    slice
}

fn alias_label() -> Value {
    json!({"clusterip-policy/alias": "kubernetes"})
}

#[tokio::test(flavor = "multi_thread")]
async fn stolen_token_of_the_account_writes_only_objects_of_a_renumbering() {
    let plane = deployed().await;
    let client = plane.client_with(&plane.token(NAMESPACE, ACCOUNT).await);
    let range = |name: &str| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
            "spec": {"cidrs": ["10.100.0.0/24"]}})
    };
    let revision = |name: &str, label: &str| {
        json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 0, "data": {},
            "metadata": {"name": name, "labels": {"clusterip-policy/move": label}}})
    };
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let pool = json!({"apiVersion": "clusterip-policy.io/v1alpha1", "kind": "ServicePool",
        "metadata": {"name": "shop"},
        "spec": {"cidrs": ["10.96.0.0/28"], "fence": "Deny", "match": {"namespaces": ["shop"]},
            "reservations": [{"address": "10.96.0.5", "namespace": "shop", "name": "web"}]}});
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "u"});
    plane.apply(&pool.to_string()).await;
    let mut stored_alias = service("clusterip-alias-kubernetes", alias_label(), json!({}));
    stored_alias["metadata"]["namespace"] = json!("default");
    plane.apply(&stored_alias.to_string()).await;
    for name in DNS.into_iter().chain(["metrics"]) {
        let mut service = service(name, json!({"k8s-app": "kube-dns"}), json!({"selector": {"k8s-app": "kube-dns"}}));
        service["metadata"]["namespace"] = json!("kube-system");
        plane.apply(&service.to_string()).await;
    }
    let pools = "/apis/clusterip-policy.io/v1alpha1/servicepools/shop?dryRun=All".to_owned();
    let (core, apps) = ("/api/v1", "/apis/apps/v1");
    let (discovery, network) = ("/apis/discovery.k8s.io/v1", "/apis/networking.k8s.io/v1");
    let other = || service("web", json!({}), json!({}));
    eventually("the policy to be in force", async || {
        (tried(&client, Method::POST, &post(core, "default", "services"), other()).await == REFUSED).then_some(())
    })
    .await;
    let alias = |spec: Value| service("clusterip-alias-kubernetes", alias_label(), spec);
    let delete = |path: &str, name: &str| format!("{path}/{name}?dryRun=All");
    let mut with_finalizer = alias(json!({}));
    with_finalizer["metadata"]["finalizers"] = json!(["example.com/mine"]);
    let rows = [
        (
            "an alias",
            Method::POST,
            post(core, "default", "services"),
            service("clusterip-alias-new-kubernetes", alias_label(), json!({})),
            "allowed",
        ),
        (
            "an alias with a selector",
            Method::POST,
            post(core, "default", "services"),
            alias(json!({"selector": {"app": "web"}})),
            REFUSED,
        ),
        ("a Service of kube-system", Method::POST, post(core, "kube-system", "services"), other(), REFUSED),
        (
            "a Service with the label of DNS",
            Method::POST,
            post(core, "kube-system", "services"),
            service("web", json!({"k8s-app": "kube-dns"}), json!({"selector": {"app": "web"}})),
            REFUSED,
        ),
        (
            "an alias of no Service",
            Method::POST,
            post(core, "kube-system", "services"),
            service("clusterip-alias-web", alias_label(), json!({})),
            REFUSED,
        ),
        (
            "a Service with the label of aliases",
            Method::POST,
            post(core, "kube-system", "services"),
            service("web", alias_label(), json!({})),
            REFUSED,
        ),
        // old-addresses keeps aliases from users by their label.
        (
            "an alias without the label",
            Method::POST,
            post(core, "kube-system", "services"),
            service("clusterip-alias-kube-dns", json!({}), json!({})),
            REFUSED,
        ),
        (
            "the Service of DNS in another namespace",
            Method::POST,
            post(core, "default", "services"),
            service("kube-dns", json!({}), json!({})),
            REFUSED,
        ),
        (
            "a copy",
            Method::POST,
            post(discovery, "default", "endpointslices"),
            slice("clusterip-copy-kubernetes", "clusterip-alias-kubernetes", alias_label()),
            "allowed",
        ),
        (
            "a copy for an alias of no Service",
            Method::POST,
            post(discovery, "kube-system", "endpointslices"),
            slice("clusterip-copy-meta", "clusterip-alias-meta", alias_label()),
            REFUSED,
        ),
        (
            "endpoints of default/kubernetes",
            Method::POST,
            post(discovery, "default", "endpointslices"),
            slice("clusterip-copy-kubernetes", "kubernetes", alias_label()),
            REFUSED,
        ),
        ("the record", Method::POST, post(core, NAMESPACE, "configmaps"), map("clusterip-renumbering"), "allowed"),
        ("another ConfigMap", Method::POST, post(core, NAMESPACE, "configmaps"), map("other"), REFUSED),
        (
            "a request for a move",
            Method::POST,
            post(apps, NAMESPACE, "controllerrevisions"),
            revision("clusterip-move-request-1", "request"),
            "allowed",
        ),
        (
            "the record of a move",
            Method::POST,
            post(apps, NAMESPACE, "controllerrevisions"),
            revision("clusterip-move-1", "request"),
            REFUSED,
        ),
        (
            "a record with the name of a request",
            Method::POST,
            post(apps, NAMESPACE, "controllerrevisions"),
            revision("clusterip-move-request-1", "record"),
            REFUSED,
        ),
        ("a range", Method::POST, post(network, "", "servicecidrs"), range("clusterip-new"), "allowed"),
        ("another range", Method::POST, post(network, "", "servicecidrs"), range("mine"), REFUSED),
        (
            "default/kubernetes",
            Method::DELETE,
            delete("/api/v1/namespaces/default/services", "kubernetes"),
            Value::Null,
            REFUSED,
        ),
        (
            "the addresses of a pool",
            Method::PATCH,
            pools.clone(),
            json!({"spec": {"cidrs": ["10.100.0.0/28"], "exclude": ["10.100.0.7"],
                "reservations": [{"address": "10.100.0.5", "namespace": "shop", "name": "web"}]}}),
            "allowed",
        ),
        // The server moves the Services of users, and holds the Lease.
        (
            "a Service of a user",
            Method::PUT,
            "/api/v1/namespaces/shop/services/web?dryRun=All".to_owned(),
            service("web", json!({}), json!({})),
            NO_PERMISSION,
        ),
        ("an alias with a finalizer", Method::POST, post(core, "default", "services"), with_finalizer, REFUSED),
        (
            "the Service of DNS",
            Method::DELETE,
            delete("/api/v1/namespaces/kube-system/services", "kube-dns"),
            Value::Null,
            REFUSED,
        ),
        (
            "a temporary Service of a move",
            Method::POST,
            post(core, NAMESPACE, "services"),
            service("clusterip-old-0123456789", json!({"clusterip-policy/temporary": "old"}), json!({})),
            REFUSED,
        ),
        (
            "the trigger of a move",
            Method::POST,
            post(core, NAMESPACE, "services"),
            service("clusterip-trigger-0123456789", json!({"clusterip-policy/temporary": "trigger"}), json!({})),
            REFUSED,
        ),
        (
            "a Service in another namespace",
            Method::POST,
            post(core, "kube-public", "services"),
            service("web", json!({}), json!({})),
            NO_PERMISSION,
        ),
        (
            "the Lease of the server",
            Method::POST,
            post("/apis/coordination.k8s.io/v1", NAMESPACE, "leases"),
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "clusterip-leader"}}),
            NO_PERMISSION,
        ),
        ("its fence", Method::PATCH, pools.clone(), json!({"spec": {"fence": "Allow"}}), REFUSED),
        ("whom it admits", Method::PATCH, pools.clone(), json!({"spec": {"match": {"namespaces": ["mine"]}}}), REFUSED),
        ("no match", Method::PATCH, pools.clone(), json!({"spec": {"match": null}}), REFUSED),
        (
            "what it does when it is full",
            Method::PATCH,
            pools.clone(),
            json!({"spec": {"whenFull": "Unmanaged"}}),
            REFUSED,
        ),
        (
            "for whom it keeps an address",
            Method::PATCH,
            pools.clone(),
            json!({"spec": {"reservations": [{"address": "10.96.0.5", "namespace": "mine", "name": "web"}]}}),
            REFUSED,
        ),
        // The garbage collector deletes an object whose owner does not exist.
        ("its owner", Method::PATCH, pools.clone(), json!({"metadata": {"ownerReferences": [owner]}}), REFUSED),
        (
            "its finalizers",
            Method::PATCH,
            pools.clone(),
            json!({"metadata": {"finalizers": ["example.com/mine"]}}),
            REFUSED,
        ),
        ("its annotations", Method::PATCH, pools.clone(), json!({"metadata": {"annotations": {"a": "b"}}}), REFUSED),
        ("its labels", Method::PATCH, pools, json!({"metadata": {"labels": {"a": "b"}}}), REFUSED),
    ];
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    for (namespace, service) in [("default", "kubernetes")].into_iter().chain(DNS.map(|name| ("kube-system", name))) {
        let path = format!("/api/v1/namespaces/{namespace}/services/{service}");
        let stored = send(&plane.client(), Method::GET, &path, None).await.unwrap();
        let points_to = |name: &str| json!({"spec": {"type": "ExternalName", "externalName": name}});
        let domain = format!("{namespace}.svc.cluster.local");
        let changes = [
            ("points to its alias", points_to(&format!("clusterip-alias-{service}.{domain}")), "allowed"),
            ("points to its new alias", points_to(&format!("clusterip-alias-new-{service}.{domain}")), "allowed"),
            ("points to another name", points_to("example.com"), REFUSED),
            ("points to another Service", points_to(&format!("web.{domain}")), REFUSED),
            ("points to the alias of another Service", points_to(&format!("clusterip-alias-web.{domain}")), REFUSED),
            ("a selector", json!({"spec": {"selector": {"app": "mine"}}}), REFUSED),
            ("its affinity", json!({"spec": {"sessionAffinity": "ClientIP"}}), REFUSED),
            ("a load balancer", json!({"spec": {"type": "LoadBalancer"}}), REFUSED),
            ("external addresses", json!({"spec": {"externalIPs": ["192.0.2.1"]}}), REFUSED),
            ("its finalizers", json!({"metadata": {"finalizers": ["example.com/mine"]}}), REFUSED),
            ("its labels", json!({"metadata": {"labels": {"a": "b"}}}), REFUSED),
            ("its owner", json!({"metadata": {"ownerReferences": [owner]}}), REFUSED),
        ];
        for (name, change, expected) in changes {
            let mut body = stored.clone();
            json_patch::merge(&mut body, &change);
            found.push((name, tried(&client, Method::PUT, &format!("{path}?dryRun=All"), body).await));
            wanted.push((name, expected.to_owned()));
        }
    }
    for (namespace, name) in [("kube-system", "metrics"), ("default", "clusterip-alias-kubernetes")] {
        let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
        let mut body = send(&plane.client(), Method::GET, &path, None).await.unwrap();
        body["spec"]["type"] = json!("ExternalName");
        body["spec"]["externalName"] = json!(format!("clusterip-alias-{name}.{namespace}.svc.cluster.local"));
        found.push(("another Service", tried(&client, Method::PUT, &format!("{path}?dryRun=All"), body).await));
        wanted.push(("another Service", REFUSED.to_owned()));
    }
    let dns = DNS.map(|name| {
        let alias = format!("clusterip-alias-{name}");
        let body = service(&alias, alias_label(), json!({"selector": {"k8s-app": "kube-dns"}}));
        ("an alias of DNS", Method::POST, post(core, "kube-system", "services"), body, "allowed")
    });
    for (name, method, path, body, expected) in rows.into_iter().chain(dns) {
        found.push((name, tried(&client, method, &path, body).await));
        wanted.push((name, expected.to_owned()));
    }
    assert_eq!(found, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn token_of_keep_writes_only_the_copies() {
    let plane = deployed().await;
    for name in ["clusterip-renumbering", "other"] {
        let metadata = json!({"name": name, "namespace": NAMESPACE});
        plane.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}).to_string()).await;
    }
    let client = plane.client_with(&plane.token(NAMESPACE, KEEP_ACCOUNT).await);
    let (core, apps) = ("/api/v1", "/apis/apps/v1");
    let (discovery, network) = ("/apis/discovery.k8s.io/v1", "/apis/networking.k8s.io/v1");
    let get = |path: &str| ("read", Method::GET, path.to_owned(), Value::Null);
    let create = |group: &str, namespace: &str, plural: &str, body: Value| {
        ("create", Method::POST, post(group, namespace, plural), body)
    };
    let delete = |path: &str| ("delete", Method::DELETE, format!("{path}?dryRun=All"), Value::Null);
    let patch = |path: &str| {
        let body = json!({"metadata": {"annotations": {"a": "b"}}});
        ("patch", Method::PATCH, format!("{path}?dryRun=All"), body)
    };
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let (copy, of_kubernetes) = (format!("{slices}/clusterip-copy-kubernetes"), format!("{slices}/kubernetes"));
    let record = "/api/v1/namespaces/clusterip-policy/configmaps/clusterip-renumbering";
    let other = "/api/v1/namespaces/clusterip-policy/configmaps/other";
    let kubernetes = "/api/v1/namespaces/default/services/kubernetes";
    let copied = || slice("clusterip-copy-kubernetes", "clusterip-alias-kubernetes", alias_label());
    eventually("the policy to be in force", async || {
        let body = slice("mine", "kubernetes", alias_label());
        (tried(&client, Method::POST, &post(discovery, "default", "endpointslices"), body).await == REFUSED)
            .then_some(())
    })
    .await;
    assert_eq!(tried(&client, Method::POST, slices, copied()).await, "allowed");
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "watch", "group": "discovery.k8s.io", "resource": "endpointslices",
            "namespace": "default"}}});
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let review: Value = client.request(request(Method::POST, path, &review)).await.unwrap();
    assert_eq!(review["status"]["allowed"], json!(true), "watch EndpointSlices");
    let alias = service("clusterip-alias-kubernetes", alias_label(), json!({}));
    let range = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": "clusterip-new"}, "spec": {"cidrs": ["10.100.0.0/24"]}});
    let revision = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 0, "data": {},
        "metadata": {"name": "clusterip-move-request-1", "labels": {"clusterip-policy/move": "request"}}});
    let rows = [
        (get(record), "allowed"),
        (get(kubernetes), "allowed"),
        (get(slices), "allowed"),
        (patch(&copy), "allowed"),
        (delete(&copy), "allowed"),
        (
            create(
                discovery,
                "kube-system",
                "endpointslices",
                slice("clusterip-copy-kube-dns", "clusterip-alias-kube-dns", alias_label()),
            ),
            "allowed",
        ),
        (patch(&of_kubernetes), REFUSED),
        (delete(&of_kubernetes), REFUSED),
        (create(discovery, "default", "endpointslices", slice("clusterip-copy-web", "web", alias_label())), REFUSED),
        (create(discovery, "kube-public", "endpointslices", copied()), NO_PERMISSION),
        (get(other), NO_PERMISSION),
        (get("/api/v1/namespaces/kube-system/configmaps"), NO_PERMISSION),
        (get("/api/v1/services"), NO_PERMISSION),
        (patch(record), NO_PERMISSION),
        (delete(record), NO_PERMISSION),
        (create(core, "default", "services", alias), NO_PERMISSION),
        (delete(kubernetes), NO_PERMISSION),
        (create(network, "", "servicecidrs", range), NO_PERMISSION),
        (create(apps, NAMESPACE, "controllerrevisions", revision), NO_PERMISSION),
        (get("/apis/clusterip-policy.io/v1alpha1/servicepools"), NO_PERMISSION),
    ];
    let (mut found, mut wanted) = (Vec::new(), Vec::new());
    for ((name, method, path, body), expected) in rows {
        found.push((name, path.clone(), tried(&client, method, &path, body).await));
        wanted.push((name, path, expected.to_owned()));
    }
    assert_eq!(found, wanted);
}
