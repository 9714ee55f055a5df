//! Whole decisions: from which pool a Service gets an address, and what the answer contains.

use clusterip_core::validate;
use serde_json::{Value, json};

use crate::support::{
    ASSUMED, FakeCluster, LINUX, UNASKED, WINDOWS, Why, allocated, annotated, answer, answer_of, by, by_os, created,
    denied, lowest, selecting, service, unchanged, updated, with_mixed, with_spec,
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
    struct Case {
        name: &'static str,
        object: Value,
        cluster: FakeCluster,
        address: &'static str,
        why: Why<'static>,
    }
    let mut public = selecting();
    public["metadata"]["labels"] = json!({"public": ""});
    let windows = || cluster().workload("Deployment", "shop/web", json!({"os": {"name": "windows"}}));
    let team_a = |namespace: &str| cluster().namespace(namespace, &[("team", "a")], &[]);
    let rows = [
        Case {
            name: "by the name of the Namespace",
            object: in_namespace("ledger"),
            cluster: cluster(),
            address: "10.0.1.1",
            why: by("named", "namespace ledger"),
        },
        Case {
            name: "by the labels of the Namespace",
            object: in_namespace("b"),
            cluster: team_a("b"),
            address: "10.0.2.1",
            why: by("team", "labels of namespace b"),
        },
        Case {
            name: "the name of the Namespace before its labels",
            object: in_namespace("payments"),
            cluster: team_a("payments"),
            address: "10.0.1.1",
            why: by("named", "namespace payments"),
        },
        Case {
            name: "labels of another Namespace do not count",
            object: in_namespace("b"),
            cluster: team_a("c"),
            address: "10.0.5.1",
            why: by("rest", "default"),
        },
        Case {
            name: "by the labels of the Service",
            object: public,
            cluster: cluster(),
            address: "10.0.3.1",
            why: by("public", "labels of the Service"),
        },
        Case {
            name: "by the operating system",
            object: selecting(),
            cluster: windows(),
            address: "10.0.4.1",
            why: by_os("windows", "Deployment shop/web", WINDOWS),
        },
        Case {
            name: "the last pool, after a look-up of the operating system",
            object: selecting(),
            cluster: cluster(),
            address: "10.0.5.1",
            why: by_os("rest", "setting assumeOS", LINUX),
        },
        Case {
            name: "the last pool",
            object: in_namespace("b"),
            cluster: cluster(),
            address: "10.0.5.1",
            why: by("rest", "default"),
        },
    ];
    for Case { name, object, cluster, address, why } in rows {
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
    struct Case {
        name: &'static str,
        object: Value,
        expected: Value,
    }
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
        Case {
            name: "a pool of another os",
            object: pool("windows"),
            expected: allocated(&pool("windows"), &["10.0.4.1"], of("windows"), &[]),
        },
        Case {
            name: "before the os annotation",
            object: both.clone(),
            expected: allocated(&both, &["10.0.4.1"], of("windows"), &[]),
        },
        Case {
            name: "a pool behind the first that matches",
            object: pool("rest"),
            expected: allocated(&pool("rest"), &["10.0.5.1"], of("rest"), &[]),
        },
        Case {
            name: "an empty name",
            object: pool(""),
            expected: allocated(&pool(""), &["10.0.5.1"], by_os("rest", "setting assumeOS", LINUX), &[]),
        },
        Case {
            name: "an unknown pool",
            object: pool("Windows"),
            expected: denied(
                403,
                r#"Service shop/web: annotation clusterip-policy/pool names pool "Windows", which is unknown: known are named, team, public, windows, rest"#,
                UNASKED,
                &[],
            ),
        },
        Case {
            name: "not admitted by namespaces",
            object: pool("named"),
            expected: not_admitted("named", "namespaces"),
        },
        Case {
            name: "not admitted by namespaceSelector",
            object: pool("team"),
            expected: not_admitted("team", "namespaceSelector"),
        },
        Case {
            name: "not admitted by serviceSelector",
            object: pool("public"),
            expected: not_admitted("public", "serviceSelector"),
        },
    ];
    for Case { name, object, expected } in rows {
        assert_eq!(answer(&object, &teams(), &cluster()), expected, "{name}");
    }
}

#[test]
fn unchanged_request_has_a_reason_and_needs_no_look_up() {
    struct Case {
        name: &'static str,
        request: Value,
        reason: &'static str,
    }
    let rows = [
        Case { name: "headless", request: created(service(json!({"clusterIP": "None"}))), reason: "headless" },
        Case {
            name: "ExternalName",
            request: created(service(json!({"type": "ExternalName"}))),
            reason: "type ExternalName has no address",
        },
        Case {
            name: "an exempt namespace",
            request: created(in_namespace("kube-system")),
            reason: "namespace kube-system is exempt",
        },
        Case {
            name: "a PUT without clusterIP",
            request: updated(service(json!({"clusterIP": "172.21.1.7"})), selecting()),
            reason: "no new address",
        },
    ];
    for Case { name, request, reason } in rows {
        let cluster = cluster();
        assert_eq!(answer_of(&request, &lowest(), &cluster), unchanged(reason, UNASKED, &[]), "{name}");
        assert_eq!(cluster.questions(), [""; 0], "{name}");
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
    struct Case {
        name: &'static str,
        object: Value,
        spec: Value,
    }
    let rows = [
        Case {
            name: "no spec",
            object: json!({"metadata": {"name": "web", "namespace": "shop"}}),
            spec: json!({"clusterIP": "172.21.0.50"}),
        },
        Case {
            name: "spec null",
            object: json!({"metadata": {"name": "web"}, "spec": null}),
            spec: json!({"clusterIP": "172.21.0.50"}),
        },
        Case {
            name: "an empty list is kept",
            object: service(json!({"clusterIPs": []})),
            spec: json!({"clusterIP": "172.21.0.50", "clusterIPs": []}),
        },
        Case {
            name: "null instead of a list is replaced",
            object: service(json!({"clusterIPs": null})),
            spec: json!({"clusterIP": "172.21.0.50", "clusterIPs": ["172.21.0.50"]}),
        },
        Case {
            name: "a list of an empty address is replaced",
            object: service(json!({"clusterIP": "", "clusterIPs": [""]})),
            spec: json!({"clusterIP": "172.21.0.50", "clusterIPs": ["172.21.0.50"]}),
        },
        Case {
            name: "unknown fields are kept",
            object: service(json!({"ports": [{"port": 80, "x": 1.5}], "new": {"a": [null]}})),
            spec: json!({"ports": [{"port": 80, "x": 1.5}], "new": {"a": [null]}, "clusterIP": "172.21.0.50"}),
        },
    ];
    for Case { name, object, spec } in rows {
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
    struct Case {
        name: &'static str,
        answer: Value,
        expected: Value,
    }
    let bad = |message: &str| denied(400, message, UNASKED, &[]);
    let request = created(selecting());
    let rows = [
        Case {
            name: "no request",
            answer: answer_of(&Value::Null, &lowest(), &cluster()),
            expected: bad("the request can't be read: request: expected an object, found null"),
        },
        Case {
            name: "a mistyped field",
            answer: answer(&service(json!({"clusterIP": 1})), &lowest(), &cluster()),
            expected: bad(
                "the request can't be read: request.object.spec.clusterIP: expected a string, found the number 1",
            ),
        },
        Case {
            name: "invalid settings",
            answer: answer_of(&request, &json!({"services": {"order": 1, "explicit": 2}}), &cluster()),
            expected: bad(
                "invalid settings: services.order: expected a string, found the number 1\nservices.explicit: expected a string, found the number 2",
            ),
        },
    ];
    for Case { name, answer, expected } in rows {
        assert_eq!(answer, expected, "{name}");
    }
    for payload in ["", "{", "[]", "\u{0}", "7", r#"{"request": {}, "request": {}}"#] {
        let answer = serde_json::to_value(validate(payload.as_bytes(), &cluster())).unwrap();
        let message = answer["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.starts_with("the request "), "{payload:?}: {answer}");
        assert_eq!(answer, bad(&message), "{payload:?}");
    }
}

/// A cluster of two families, in which all Services of Windows nodes and of the team `a` have pools.
fn with_unmatched(services: &Value) -> Value {
    let mut settings = json!({
        "order": "lowest",
        "pools": [
            {"name": "windows", "cidrs": ["10.0.0.16/28", "fd00::/112"], "match": {"os": "windows"}},
            {"name": "a", "cidrs": ["10.0.0.0/29"], "match": {"os": "linux", "namespaces": ["shop"]}},
        ],
        "serviceCIDRs": ["10.0.0.0/24", "fd00::/108"],
    });
    let fields = services.as_object().unwrap().clone();
    settings.as_object_mut().unwrap().extend(fields);
    json!({ "services": settings })
}

#[test]
fn service_that_no_pool_matches_gets_no_address_of_a_pool() {
    struct Case {
        name: &'static str,
        services: Value,
        object: Value,
        cluster: FakeCluster,
        expected: Value,
    }
    const BEOS: &[(&str, &str)] = &[("kubernetes.io/os", "beos")];
    const WHY: Why<'static> = (None, Some(("annotation clusterip-policy/os", BEOS)));
    const NO_POOL: &str = "no pool matches kubernetes.io/os=beos (annotation clusterip-policy/os)";
    let outside = format!("{NO_POOL}: it gets an address outside of all pools");
    let deny = |why: &str| {
        let remedy = "add a pool that matches it, or set services.unmatched: unmanaged";
        denied(403, &format!("Service shop/web: {NO_POOL}{why}; {remedy}"), WHY, &[])
    };
    let beos = annotated(&[("clusterip-policy/os", "beos")]);
    let two = with_spec(beos.clone(), json!({"ipFamilyPolicy": "RequireDualStack"}));
    let prefers = with_spec(selecting(), json!({"ipFamilyPolicy": "PreferDualStack"}));
    let one_taken = cluster().service("shop/one", "10.0.0.32");
    let rows = [
        Case {
            name: "an address outside of the pools and of the static band",
            services: json!({"explicit": "deny"}),
            object: beos.clone(),
            cluster: one_taken,
            expected: allocated(&beos, &["10.0.0.33"], WHY, &[&outside]),
        },
        Case {
            name: "an address of each family",
            services: json!({"unmatched": "outside"}),
            object: two.clone(),
            cluster: cluster(),
            expected: allocated(&two, &["10.0.0.32", "fd00::1:0"], WHY, &[&outside]),
        },
        Case {
            name: "a second address of a family that the pool lacks",
            services: json!({"explicit": "deny"}),
            object: prefers.clone(),
            cluster: cluster(),
            expected: allocated(&prefers, &["10.0.0.2", "fd00::1:0"], by_os("a", "setting assumeOS", LINUX), &[]),
        },
        Case {
            name: "denied",
            services: json!({"unmatched": "deny"}),
            object: beos.clone(),
            cluster: cluster(),
            expected: deny(""),
        },
        Case {
            name: "pools in the whole Service range",
            services: json!({"explicit": "deny", "serviceCIDRs": ["10.0.0.0/28", "fd00::/112"], "pools": [{"name": "all", "cidrs": ["10.0.0.0/28", "fd00::/112"], "match": {"os": "windows"}}]}),
            object: beos.clone(),
            cluster: cluster(),
            expected: denied(
                403,
                &format!(
                    "Service shop/web: {NO_POOL}, and no IPv4 address outside of the pools is free; add a pool that \
                     matches it, or set services.unmatched: unmanaged"
                ),
                WHY,
                &[&outside],
            ),
        },
        Case {
            name: "unknown Service ranges",
            services: json!({"explicit": "deny", "serviceCIDRs": []}),
            object: with_spec(beos.clone(), json!({"ipFamilies": ["IPv4"]})),
            cluster: cluster(),
            expected: denied(
                403,
                &format!(
                    "Service shop/web: {NO_POOL}, and services.serviceCIDRs has no IPv4 range to take an address from; \
                     add a pool that matches it, or set services.unmatched: unmanaged"
                ),
                WHY,
                &[&outside],
            ),
        },
    ];
    for Case { name, services, object, cluster, expected } in rows {
        assert_eq!(answer(&object, &with_unmatched(&services), &cluster), expected, "{name}");
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
