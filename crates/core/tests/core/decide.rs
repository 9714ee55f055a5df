//! Whole decisions: from which pool a Service gets an address, and what the answer contains.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{
    ASSUMED, FakeCluster, LINUX, UNASKED, WINDOWS, Why, allocated, annotated, answer, answer_of, by, by_os, created,
    denied, left, lowest, selecting, service, updated, with_mixed, with_spec,
};
use clusterip_core::validate;
use serde_json::{Value, json};

fn cluster() -> FakeCluster {
    FakeCluster::default()
}

/// Pools of teams, from the most specific to one for all Services.
fn teams() -> Value {
    json!({"services": {
        "order": "lowest",
        "pools": [
            {"name": "named", "cidrs": ["10.0.1.0/24"], "match": {"namespaces": ["payments", "ledger"]}},
            {"name": "team", "cidrs": ["10.0.2.0/24"], "match": {"namespaceSelector": {"matchLabels": {"team": "a"}}}},
            {"name": "public", "cidrs": ["10.0.3.0/24"], "match": {"serviceSelector": {"matchExpressions": [{"key": "public", "operator": "Exists"}]}}},
            {"name": "windows", "cidrs": ["10.0.4.0/24"], "match": {"os": "windows", "namespaces": ["shop"]}},
            {"name": "rest", "cidrs": ["10.0.5.0/24"]},
        ],
    }})
}

fn in_namespace(namespace: &str) -> Value {
    let mut object = selecting();
    object["metadata"]["namespace"] = namespace.into();
    object
}

#[test]
fn first_pool_that_matches_is_chosen() {
    let mut public = selecting();
    public["metadata"]["labels"] = json!({"public": ""});
    let windows = || cluster().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}));
    let team_a = |namespace: &str| cluster().namespace(namespace, &[("team", "a")], &[]);
    let rows: Vec<(&str, Value, FakeCluster, &str, Why<'_>)> = vec![
        ("by the namespace's name", in_namespace("ledger"), cluster(), "10.0.1.1", by("named", "namespace ledger")),
        ("by its labels", in_namespace("b"), team_a("b"), "10.0.2.1", by("team", "labels of namespace b")),
        (
            "the name before the labels",
            in_namespace("payments"),
            team_a("payments"),
            "10.0.1.1",
            by("named", "namespace payments"),
        ),
        ("another namespace's labels", in_namespace("b"), team_a("c"), "10.0.5.1", by("rest", "default")),
        ("by the Service's labels", public, cluster(), "10.0.3.1", by("public", "labels of the Service")),
        ("by os", selecting(), windows(), "10.0.4.1", by_os("windows", "Deployment shop/web", WINDOWS)),
        (
            "the rest, where nodes were asked about",
            selecting(),
            cluster(),
            "10.0.5.1",
            by_os("rest", "assumption", LINUX),
        ),
        ("the rest", in_namespace("b"), cluster(), "10.0.5.1", by("rest", "default")),
    ];
    for (name, object, cluster, address, why) in rows {
        assert_eq!(answer(&object, &teams(), &cluster), allocated(&object, &[address], why, &[]), "{name}");
    }
}

#[test]
fn only_labels_that_a_pool_matches_on_are_looked_up() {
    let questions = |object: &Value| {
        let cluster = cluster();
        answer(object, &teams(), &cluster);
        cluster.questions()
    };
    assert_eq!(questions(&in_namespace("ledger")), ["list Service", "get IPAddress 10.0.1.1"]);
    assert_eq!(questions(&in_namespace("b")), ["get Namespace b", "list Service", "get IPAddress 10.0.5.1"]);
}

#[test]
fn namespace_name_label_matches_even_if_the_namespace_is_missing() {
    let settings = json!({"services": {"order": "lowest", "pools": [
        {"name": "a", "cidrs": ["10.0.1.0/24"], "match": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}},
    ]}});
    let object = selecting();
    let expected = allocated(&object, &["10.0.1.1"], by("a", "labels of namespace shop"), &[]);
    assert_eq!(answer(&object, &settings, &cluster()), expected);
}

#[test]
fn service_without_a_pool_is_left_to_kubernetes_with_a_warning() {
    let windows_only =
        json!({"services": {"pools": [{"name": "windows", "cidrs": ["10.0.1.0/24"], "match": {"os": "windows"}}]}});
    let team_only =
        json!({"services": {"pools": [{"name": "team", "cidrs": ["10.0.1.0/24"], "match": {"namespaces": ["a"]}}]}});
    let reason = "no pool matches kubernetes.io/os=linux (assumption): Kubernetes picks the address";
    let expected = left(reason, (None, Some(("assumption", LINUX))), &[reason]);
    assert_eq!(answer(&selecting(), &windows_only, &cluster()), expected, "by os");
    let reason = "no pool matches this Service: Kubernetes picks the address";
    assert_eq!(answer(&selecting(), &team_only, &cluster()), left(reason, UNASKED, &[reason]), "by namespace");
}

#[test]
fn settings_for_nodes_only_leave_services_without_a_warning() {
    let nodes_only = json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}]}});
    let expected = left("the settings have no pool for Services", UNASKED, &[]);
    assert_eq!(answer(&selecting(), &nodes_only, &cluster()), expected);
}

#[test]
fn evidence_that_is_not_a_label_value_is_quoted() {
    let object = annotated(&[("clusterip-policy/os", "Win\n=dows ")]);
    let reason = r#"no pool matches kubernetes.io/os="win\n=dows " (annotation clusterip-policy/os): Kubernetes picks the address"#;
    let why = (None, Some(("annotation clusterip-policy/os", &[("kubernetes.io/os", "win\n=dows ")][..])));
    assert_eq!(answer(&object, &lowest(), &cluster()), left(reason, why, &[reason]));
}

#[test]
fn pool_annotation_replaces_evidence_but_no_other_condition() {
    let pool = |name: &str| annotated(&[("clusterip-policy/pool", name)]);
    let of = |pool| by(pool, "annotation clusterip-policy/pool");
    let not_admitted = |pool: &str, condition: &str| {
        let message = format!(
            "Service shop/web: annotation clusterip-policy/pool names pool {pool:?}, which does not admit this Service: {condition} does not match"
        );
        denied(403, &message, UNASKED, &[])
    };
    let mut both = pool("windows");
    both["metadata"]["annotations"]["clusterip-policy/os"] = "linux".into();
    let rows = [
        ("a pool of another os", pool("windows"), allocated(&pool("windows"), &["10.0.4.1"], of("windows"), &[])),
        ("before the os annotation", both.clone(), allocated(&both, &["10.0.4.1"], of("windows"), &[])),
        ("a pool behind its own", pool("rest"), allocated(&pool("rest"), &["10.0.5.1"], of("rest"), &[])),
        ("an empty name", pool(""), allocated(&pool(""), &["10.0.5.1"], by_os("rest", "assumption", LINUX), &[])),
        (
            "an unknown pool",
            pool("Windows"),
            denied(
                403,
                r#"Service shop/web: annotation clusterip-policy/pool names pool "Windows", which is unknown: known are named, team, public, windows, rest"#,
                UNASKED,
                &[],
            ),
        ),
        ("not admitted by namespaces", pool("named"), not_admitted("named", "namespaces")),
        ("not admitted by namespaceSelector", pool("team"), not_admitted("team", "namespaceSelector")),
        ("not admitted by serviceSelector", pool("public"), not_admitted("public", "serviceSelector")),
    ];
    for (name, object, expected) in rows {
        assert_eq!(answer(&object, &teams(), &cluster()), expected, "{name}");
    }
}

#[test]
fn unchanged_request_has_a_reason_and_needs_no_look_up() {
    let rows = [
        ("headless", created(service(json!({"clusterIP": "None"}))), "headless"),
        ("ExternalName", created(service(json!({"type": "ExternalName"}))), "type ExternalName has no address"),
        ("exempt", created(in_namespace("kube-system")), "namespace kube-system is exempt"),
        (
            "a PUT without clusterIP",
            updated(service(json!({"clusterIP": "172.21.1.7"})), selecting()),
            "no new address",
        ),
    ];
    for (name, request, reason) in rows {
        let cluster = cluster();
        assert_eq!(answer_of(&request, &lowest(), &cluster), left(reason, UNASKED, &[]), "{name}");
        assert_eq!(cluster.questions(), [""; 0], "{name}");
    }
}

#[test]
fn service_that_leaves_external_name_gets_an_address() {
    let old = service(json!({"type": "ExternalName", "externalName": "example.org"}));
    let object = with_spec(selecting(), json!({"type": "ClusterIP"}));
    let expected = allocated(&object, &["172.21.0.50"], ASSUMED, &[]);
    assert_eq!(answer_of(&updated(old, object), &lowest(), &cluster()), expected);
}

#[test]
fn service_with_generate_name_is_hashed_by_its_request_uid() {
    let mut object = selecting();
    object["metadata"] = json!({"generateName": "web-", "namespace": "shop"});
    // The first address of the walk of "shop/7f3c0e1a-uid" through .50 to .254; see order.rs.
    let expected = allocated(&object, &["172.21.0.73"], ASSUMED, &[]);
    assert_eq!(answer(&object, &json!({}), &cluster()), expected);
    let full = (50..=254).fold(cluster(), |cluster, last| cluster.service("x/y", &format!("172.21.0.{last}")));
    assert_eq!(
        answer(&object, &json!({}), &full)["message"],
        "Service shop/(name yet to be generated): pool \"linux\" (172.21.0.0/24) is full: 205 of 205 addresses used, the first 50 of each range reserved; chosen by kubernetes.io/os=linux (assumption); add a range to the pool, delete Services that are not needed, or set services.whenFull: unmanaged"
    );
}

#[test]
fn only_the_address_of_the_object_changes() {
    let rows = [
        ("no spec", json!({"metadata": {"name": "web", "namespace": "shop"}}), json!({"clusterIP": "172.21.0.50"})),
        ("spec null", json!({"metadata": {"name": "web"}, "spec": null}), json!({"clusterIP": "172.21.0.50"})),
        (
            "an empty list stays",
            service(json!({"clusterIPs": []})),
            json!({"clusterIP": "172.21.0.50", "clusterIPs": []}),
        ),
        ("null in the list's place goes", service(json!({"clusterIPs": null})), json!({"clusterIP": "172.21.0.50"})),
        (
            "an empty address in the list goes",
            service(json!({"clusterIP": "", "clusterIPs": [""]})),
            json!({"clusterIP": "172.21.0.50"}),
        ),
        (
            "unknown fields stay",
            service(json!({"ports": [{"port": 80, "x": 1.5}], "new": {"a": [null]}})),
            json!({"ports": [{"port": 80, "x": 1.5}], "new": {"a": [null]}, "clusterIP": "172.21.0.50"}),
        ),
    ];
    for (name, object, spec) in rows {
        let mut request = created(object.clone());
        request["namespace"] = "shop".into();
        let mut expected = allocated(&object, &["172.21.0.50"], ASSUMED, &[]);
        expected["mutated_object"]["spec"] = spec;
        assert_eq!(answer_of(&request, &lowest(), &cluster()), expected, "{name}");
    }
}

#[test]
fn long_warnings_are_cut_to_256_characters() {
    let (first, second) = ("ä".repeat(100), "ü".repeat(300));
    let cluster = cluster().workload("Pod", &format!("shop/{first}"), json!({"os": {"name": "linux"}})).workload(
        "Pod",
        &format!("shop/{second}"),
        json!({"os": {"name": "windows"}}),
    );
    let whole = format!(
        "Pod shop/{first} needs kubernetes.io/os=linux, Pod shop/{second} needs windows: the first by name decides"
    );
    let cut: String = whole.chars().take(255).chain(['…']).collect();
    let object = selecting();
    let expected = allocated(&object, &["172.21.0.50"], by_os("linux", &format!("Pod shop/{first}"), LINUX), &[&cut]);
    // The audit annotation contains the whole warning.
    assert_eq!(answer(&object, &lowest(), &cluster), with_mixed(expected, &[&whole]));
}

#[test]
fn unreadable_payload_is_denied_with_the_reason() {
    let bad = |message: &str| denied(400, message, UNASKED, &[]);
    let request = created(selecting());
    let rows = [
        (
            "no request",
            answer_of(&Value::Null, &lowest(), &cluster()),
            bad("the request can't be read: request: expected an object, found null"),
        ),
        (
            "a field",
            answer(&service(json!({"clusterIP": 1})), &lowest(), &cluster()),
            bad("the request can't be read: request.object.spec.clusterIP: expected a string, found the number 1"),
        ),
        (
            "settings",
            answer_of(&request, &json!({"services": {"order": 1, "explicit": 2}}), &cluster()),
            bad(
                "invalid settings: services.order: expected a string, found the number 1\nservices.explicit: expected a string, found the number 2",
            ),
        ),
    ];
    for (name, answer, expected) in rows {
        assert_eq!(answer, expected, "{name}");
    }
    for payload in ["", "{", "[]", "\u{0}", "7", r#"{"request": {}, "request": {}}"#] {
        let answer = serde_json::to_value(validate(payload.as_bytes(), &cluster())).unwrap();
        let message = answer["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.starts_with("the request "), "{payload:?}: {answer}");
        assert_eq!(answer, bad(&message), "{payload:?}");
    }
}
