//! Whole decisions: from which pool a Service gets an address, and what the answer contains.

use clusterip_core::validate;
use serde_json::{Value, json};

use crate::support::{
    ASSUMED, FakeCluster, LINUX, UNASKED, WINDOWS, Why, allocated, annotated, answer, answer_of, by, by_os, created,
    denied, extended, lowest, selecting, service, unchanged, updated, with_mixed, with_spec,
};

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
    let windows = cluster().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}));
    let team_a = |namespace: &str| cluster().namespace(namespace, &[("team", "a")], &[]);
    let rest = || by("rest", "default");
    for (object, cluster, address, why) in [
        (in_namespace("ledger"), cluster(), "10.0.1.1", by("named", "namespace ledger")),
        (in_namespace("b"), team_a("b"), "10.0.2.1", by("team", "labels of namespace b")),
        // The name of the Namespace before its labels.
        (in_namespace("payments"), team_a("payments"), "10.0.1.1", by("named", "namespace payments")),
        (in_namespace("b"), team_a("c"), "10.0.5.1", rest()),
        (public, cluster(), "10.0.3.1", by("public", "labels of the Service")),
        (selecting(), windows, "10.0.4.1", by_os("windows", "Deployment shop/web", WINDOWS)),
        // The operating system was looked up for the pool before the last one, or was not.
        (selecting(), cluster(), "10.0.5.1", by_os("rest", "setting assumeOS", LINUX)),
        (in_namespace("b"), cluster(), "10.0.5.1", rest()),
    ] {
        assert_eq!(answer(&object, &teams(), &cluster), allocated(&object, &[address], why, &[]), "{why:?}");
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
    let reason = "no pool matches kubernetes.io/os=linux (setting assumeOS): Kubernetes picks the address";
    let expected = unchanged(reason, (None, Some(("setting assumeOS", LINUX))), &[reason]);
    assert_eq!(answer(&selecting(), &windows_only, &cluster()), expected, "by os");
    let reason = "no pool matches this Service: Kubernetes picks the address";
    assert_eq!(answer(&selecting(), &team_only, &cluster()), unchanged(reason, UNASKED, &[reason]), "by namespace");
}

#[test]
fn settings_for_nodes_only_leave_services_without_a_warning() {
    let nodes_only = json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}]}});
    let expected = unchanged("the settings have no pool for Services", UNASKED, &[]);
    assert_eq!(answer(&selecting(), &nodes_only, &cluster()), expected);
}

#[test]
fn evidence_that_is_not_a_label_value_is_quoted() {
    let object = annotated(&[("clusterip-policy/os", "Win\n=NT ")]);
    let reason = r#"no pool matches kubernetes.io/os="win\n=nt " (annotation clusterip-policy/os): Kubernetes picks the address"#;
    let why = (None, Some(("annotation clusterip-policy/os", &[("kubernetes.io/os", "win\n=nt ")][..])));
    assert_eq!(answer(&object, &lowest(), &cluster()), unchanged(reason, why, &[reason]));
}

#[test]
fn pool_annotation_replaces_evidence_but_no_other_condition() {
    let pool = |name: &str| annotated(&[("clusterip-policy/pool", name)]);
    let of = |pool| by(pool, "annotation clusterip-policy/pool");
    let both = annotated(&[("clusterip-policy/pool", "windows"), ("clusterip-policy/os", "linux")]);
    for (object, address, why) in [
        (pool("windows"), "10.0.4.1", of("windows")),
        (both, "10.0.4.1", of("windows")),
        (pool("rest"), "10.0.5.1", of("rest")),
        (pool(""), "10.0.5.1", by_os("rest", "setting assumeOS", LINUX)),
    ] {
        assert_eq!(answer(&object, &teams(), &cluster()), allocated(&object, &[address], why, &[]), "{object}");
    }
    for (name, mistake) in [
        ("Windows", "is unknown: known are named, team, public, windows, rest"),
        ("named", "does not admit this Service: namespaces does not match"),
        ("team", "does not admit this Service: namespaceSelector does not match"),
        ("public", "does not admit this Service: serviceSelector does not match"),
    ] {
        let message =
            format!("Service shop/web: annotation clusterip-policy/pool names pool {name:?}, which {mistake}");
        assert_eq!(answer(&pool(name), &teams(), &cluster()), denied(403, &message, UNASKED, &[]));
    }
}

#[test]
fn unchanged_request_has_a_reason_and_needs_no_look_up() {
    for (request, reason) in [
        (created(service(json!({"clusterIP": "None"}))), "headless"),
        (created(in_namespace("kube-system")), "namespace kube-system is exempt"),
        (updated(service(json!({"clusterIP": "172.21.1.7"})), selecting()), "no new address"),
    ] {
        let cluster = cluster();
        assert_eq!(answer_of(&request, &lowest(), &cluster), unchanged(reason, UNASKED, &[]));
        assert_eq!(cluster.questions(), [""; 0], "{reason}");
    }
}

#[test]
fn service_that_leaves_external_name_gets_an_address_in_both_fields() {
    for (left, named) in [
        (json!({}), json!({})),
        (json!({"clusterIP": "172.21.0.60"}), json!({})),
        (json!({"clusterIP": "172.21.0.60", "clusterIPs": ["172.21.0.60"]}), json!({"clusterIPs": []})),
    ] {
        let old = with_spec(service(json!({"type": "ExternalName", "externalName": "example.org"})), left);
        let object = with_spec(selecting(), named);
        let listed = with_spec(object.clone(), json!({"clusterIPs": ["172.21.0.50"]}));
        let expected = allocated(&listed, &["172.21.0.50"], ASSUMED, &[]);
        assert_eq!(answer_of(&updated(old, object), &lowest(), &cluster()), expected);
    }
}

#[test]
fn service_with_generate_name_is_hashed_by_its_request_uid() {
    let mut object = selecting();
    object["metadata"] = json!({"generateName": "web-", "namespace": "shop"});
    // The first address of the walk of "shop/7f3c0e1a-uid" through .50 to .254; see address_order.rs.
    let expected = allocated(&object, &["172.21.0.73"], ASSUMED, &[]);
    assert_eq!(answer(&object, &json!({}), &cluster()), expected);
    let full = (50..=254).fold(cluster(), |cluster, last| cluster.service("x/y", &format!("172.21.0.{last}")));
    assert_eq!(
        answer(&object, &json!({}), &full)["message"],
        "Service shop/(name yet to be generated): pool \"linux\" (172.21.0.0/24) is full: 205 of 205 addresses used, the first 50 of each range reserved; chosen by kubernetes.io/os=linux (setting assumeOS); add a range to the pool, delete Services that are not needed, or set services.whenFull: unmanaged"
    );
}

#[test]
fn only_the_address_of_the_object_changes() {
    let placed = || json!({"clusterIP": "172.21.0.50", "clusterIPs": ["172.21.0.50"]});
    for (object, spec) in [
        (json!({"metadata": {"name": "web", "namespace": "shop"}}), json!({"clusterIP": "172.21.0.50"})),
        (json!({"metadata": {"name": "web"}, "spec": null}), json!({"clusterIP": "172.21.0.50"})),
        // An empty list is kept, but null and an empty address are replaced.
        (service(json!({"clusterIPs": []})), json!({"clusterIP": "172.21.0.50", "clusterIPs": []})),
        (service(json!({"clusterIPs": null})), placed()),
        (service(json!({"clusterIP": "", "clusterIPs": [""]})), placed()),
        (
            service(json!({"ports": [{"port": 80, "x": 1.5}], "new": {"a": [null]}})),
            json!({"ports": [{"port": 80, "x": 1.5}], "new": {"a": [null]}, "clusterIP": "172.21.0.50"}),
        ),
    ] {
        let mut request = created(object.clone());
        request["namespace"] = "shop".into();
        let mut expected = allocated(&object, &["172.21.0.50"], ASSUMED, &[]);
        expected["mutated_object"]["spec"] = spec;
        assert_eq!(answer_of(&request, &lowest(), &cluster()), expected, "{object}");
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
    let unread = bad("the request can't be read: request.object.spec.clusterIP: expected a string, found the number 1");
    assert_eq!(answer(&service(json!({"clusterIP": 1})), &lowest(), &cluster()), unread);
    let invalid = bad(
        "invalid settings: services.order: expected a string, found the number 1\nservices.explicit: expected a string, found the number 2",
    );
    assert_eq!(answer(&selecting(), &json!({"services": {"order": 1, "explicit": 2}}), &cluster()), invalid);
    for payload in ["", "{", "[]", "\u{0}", "7", r#"{"request": {}, "request": {}}"#] {
        let answer = serde_json::to_value(validate(payload.as_bytes(), &cluster())).unwrap();
        let message = answer["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.starts_with("the request "), "{payload:?}: {answer}");
        assert_eq!(answer, bad(&message), "{payload:?}");
    }
}

/// A cluster of two families, in which all Services of Windows nodes and of the team `a` have pools.
fn with_unmatched(services: &Value) -> Value {
    let settings = json!({
        "order": "lowest",
        "pools": [
            {"name": "windows", "cidrs": ["10.0.0.16/28", "fd00::/112"], "match": {"os": "windows"}},
            {"name": "a", "cidrs": ["10.0.0.0/29"], "match": {"os": "linux", "namespaces": ["shop"]}},
        ],
        "serviceCIDRs": ["10.0.0.0/24", "fd00::/108"],
    });
    json!({ "services": extended(settings, services) })
}

#[test]
fn service_that_no_pool_matches_gets_no_address_of_a_pool() {
    const BEOS: &[(&str, &str)] = &[("kubernetes.io/os", "beos")];
    const WHY: Why<'static> = (None, Some(("annotation clusterip-policy/os", BEOS)));
    const NO_POOL: &str = "no pool matches kubernetes.io/os=beos (annotation clusterip-policy/os)";
    let outside = format!("{NO_POOL}: it gets an address outside of all pools");
    let deny = |why: &str, warnings: &[&str]| {
        let remedy = "add a pool that matches it, or set services.unmatched: unmanaged";
        denied(403, &format!("Service shop/web: {NO_POOL}{why}; {remedy}"), WHY, warnings)
    };
    let beos = annotated(&[("clusterip-policy/os", "beos")]);
    let two = with_spec(beos.clone(), json!({"ipFamilyPolicy": "RequireDualStack"}));
    let prefers = with_spec(selecting(), json!({"ipFamilyPolicy": "PreferDualStack"}));
    let whole = json!(["10.0.0.0/28", "fd00::/112"]);
    let whole = json!({"explicit": "deny", "serviceCIDRs": whole, "pools": [{"name": "all", "cidrs": whole, "match": {"os": "windows"}}]});
    let none_free = ", and no IPv4 address outside of the pools is free";
    let unknown = ", and services.serviceCIDRs has no IPv4 range to take an address from";
    let v4 = with_spec(beos.clone(), json!({"ipFamilies": ["IPv4"]}));
    for (services, object, expected) in [
        // Outside of the pools and of the static band; another Service has the first address.
        (json!({"explicit": "deny"}), &beos, allocated(&beos, &["10.0.0.33"], WHY, &[&outside])),
        (json!({"unmatched": "outside"}), &two, allocated(&two, &["10.0.0.33", "fd00::1:0"], WHY, &[&outside])),
        // A second address of a family that the pool lacks.
        (
            json!({"explicit": "deny"}),
            &prefers,
            allocated(&prefers, &["10.0.0.2", "fd00::1:0"], by_os("a", "setting assumeOS", LINUX), &[]),
        ),
        (json!({"unmatched": "deny"}), &beos, deny("", &[])),
        (whole, &beos, deny(none_free, &[&outside])),
        (json!({"explicit": "deny", "serviceCIDRs": []}), &v4, deny(unknown, &[&outside])),
    ] {
        let cluster = cluster().service("shop/one", "10.0.0.32");
        assert_eq!(answer(object, &with_unmatched(&services), &cluster), expected, "{services}");
    }
}

#[test]
fn annotation_that_is_almost_the_name_of_an_operating_system_gets_a_hint() {
    let hint = |os: &str| {
        let answer = answer(&annotated(&[("clusterip-policy/os", os)]), &json!({}), &cluster());
        answer["warnings"].as_array().into_iter().flatten().any(|warning| {
            *warning
                == format!(
                    "annotation clusterip-policy/os: no pool is for {:?}: did you mean windows?",
                    os.to_lowercase()
                )
        })
    };
    for (os, expected) in [("Windos", true), ("winodws", true), ("windows", false), ("beos", false), ("", false)] {
        assert_eq!(hint(os), expected, "{os}");
    }
}
