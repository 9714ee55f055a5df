//! A settings document is translated into objects, and the objects into the same document.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use clusterip_api::{InUse, ObjectKey, Objects, compile, mistake_of_type, not_in_document, not_in_objects, objects};
use clusterip_core::settings::Settings;
use serde_json::{Value, json};

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "clusterip-policy.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    })
}

/// The document that these objects stand for. All of them are usable.
#[track_caller]
fn document(name: &str, objects: Vec<Value>) -> Value {
    let wrong: Vec<String> = objects.iter().filter_map(mistake_of_type).collect();
    assert_eq!(wrong, Vec::<String>::new(), "{name}");
    let compiled = compile(&Objects { objects, ..Objects::default() }, &InUse::new());
    let unused: Vec<String> = compiled
        .states
        .iter()
        .filter(|(_, state)| state.reason.as_str() != "InUse")
        .map(|(key, state)| format!("{key}: {}", state.message))
        .collect();
    assert_eq!(unused, Vec::<String>::new(), "{name}");
    compiled.document
}

#[test]
fn document_becomes_objects() {
    struct Case {
        name: &'static str,
        document: Value,
        objects: Vec<Value>,
    }
    let k2s = || {
        vec![
            object(
                "ServicePool",
                "windows",
                json!({"priority": 20, "cidrs": ["172.21.1.0/24"], "reserved": 50, "match": {"os": "windows"}}),
            ),
            object(
                "ServicePool",
                "linux",
                json!({"priority": 10, "cidrs": ["172.21.0.0/24"], "reserved": 50, "match": {"os": "linux"}}),
            ),
        ]
    };
    let cases = [
        Case { name: "the default pools", document: json!({}), objects: k2s() },
        Case { name: "an empty text", document: Value::Null, objects: k2s() },
        Case {
            name: "the default pools, and another setting",
            document: json!({"services": {"pools": null, "whenFull": "unmanaged"}}),
            objects: [vec![object("ClusterIPPolicy", "default", json!({"whenFull": "Unmanaged"}))], k2s()].concat(),
        },
        Case { name: "no pools", document: json!({"services": {"pools": []}}), objects: Vec::new() },
        Case {
            name: "pools of Nodes alone",
            document: json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.244.0.0/16"]}]}}),
            objects: vec![object("NodeBlockPool", "all", json!({"priority": 10, "cidrs": ["10.244.0.0/16"]}))],
        },
        Case {
            name: "settings and pools of all kinds",
            document: json!({
                "services": {
                    "pools": [
                        {"name": "shop", "cidrs": ["10.96.1.0/24"], "bands": true, "match": {"namespaces": ["shop"]},
                         "whenFull": "deny",
                         "reservations": [{"address": "10.96.1.4", "namespace": "shop", "name": "web"}]},
                        {"name": "b", "cidrs": ["10.96.2.0/24"], "match": {"os": "linux"}},
                        {"name": "a", "cidrs": ["10.96.3.0/24"]},
                    ],
                    "order": "lowest", "explicit": "deny", "whenFull": "unmanaged", "unmatched": "outside",
                    "assumeOS": "linux", "annotateReason": null,
                    "evidence": {"kinds": ["Deployment"], "lookups": "namespace"},
                },
                "nodes": {"explicit": "allow", "pools": [{"name": "all", "cidrs": ["10.244.0.0/16"]}]},
                "external": {"default": true, "pools": [{"name": "edge", "cidrs": ["10.0.9.10-10.0.9.40"]}]},
            }),
            objects: vec![
                object(
                    "ClusterIPPolicy",
                    "default",
                    json!({
                        "order": "Lowest", "explicit": "Deny", "whenFull": "Unmanaged", "unmatched": "Outside",
                        "assumeOS": "linux", "evidence": {"kinds": ["Deployment"]},
                        "nodes": {"explicit": "Allow"}, "external": {"default": true},
                    }),
                ),
                object(
                    "ServicePool",
                    "shop",
                    json!({
                        "priority": 30, "cidrs": ["10.96.1.0/24"], "bands": true, "match": {"namespaces": ["shop"]},
                        "whenFull": "Deny",
                        "reservations": [{"address": "10.96.1.4", "namespace": "shop", "name": "web"}],
                    }),
                ),
                object(
                    "ServicePool",
                    "b",
                    json!({"priority": 20, "cidrs": ["10.96.2.0/24"], "match": {"os": "linux"}}),
                ),
                object("ServicePool", "a", json!({"priority": 10, "cidrs": ["10.96.3.0/24"]})),
                object("ExternalPool", "edge", json!({"priority": 10, "cidrs": ["10.0.9.10-10.0.9.40"]})),
                object("NodeBlockPool", "all", json!({"priority": 10, "cidrs": ["10.244.0.0/16"]})),
            ],
        },
        Case {
            name: "an empty list of namespaces",
            document: json!({"services": {"pools": [
                {"name": "all", "cidrs": ["10.96.1.0/24"], "match": {"os": "linux", "namespaces": []}},
            ]}}),
            objects: vec![object(
                "ServicePool",
                "all",
                json!({"priority": 10, "cidrs": ["10.96.1.0/24"], "match": {"os": "linux"}}),
            )],
        },
        Case {
            name: "settings that clusterip sets itself",
            document: json!({"services": {
                "pools": [{"name": "all", "cidrs": ["10.96.1.0/24"]}], "evidence": {"lookups": "namespace"},
                "unusableServiceCIDRs": {"10.97.0.0/16": "is gone"},
            }}),
            objects: vec![object("ServicePool", "all", json!({"priority": 10, "cidrs": ["10.96.1.0/24"]}))],
        },
    ];
    for case in cases {
        assert_eq!(objects(&case.document), case.objects, "{}", case.name);
        let mut written = case.document;
        // Objects do not have these settings.
        if let Some(evidence) = written.pointer_mut("/services/evidence").and_then(Value::as_object_mut) {
            evidence.remove("lookups");
        }
        if let Some(services) = written.pointer_mut("/services").and_then(Value::as_object_mut) {
            services.remove("unusableServiceCIDRs");
        }
        let again = document(case.name, case.objects);
        assert_eq!(Settings::from_value(&again), Settings::from_value(&written), "{}", case.name);
    }
}

#[test]
fn examples_are_the_same_after_a_round_trip() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/settings");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 5, "{files:?}");
    for file in files {
        let written: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let name = file.display().to_string();
        let found = objects(&written);
        assert!(found.iter().all(|object| ObjectKey::of(object).is_some()), "{name}: {found:?}");
        assert_eq!(document(&name, found), written, "{name}");
    }
}

#[test]
fn fields_that_are_lost_are_named() {
    let all = json!({"services": {"evidence": {"lookups": "namespace"}, "unusableServiceCIDRs": {}}});
    assert_eq!(not_in_objects(&all), ["services.evidence.lookups", "services.unusableServiceCIDRs"]);
    assert_eq!(not_in_objects(&json!({"services": {"evidence": {"lookups": null}}})), Vec::<String>::new());

    let pools = [
        object("ServicePool", "open", json!({"cidrs": ["10.96.1.0/24"], "fence": "Allow"})),
        object("ExternalPool", "edge", json!({"cidrs": ["10.0.9.0/24"], "fence": "Warn"})),
        object("ServicePool", "team", json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}, "fence": "Deny"})),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {"fence": "Deny"}}),
    ];
    let lost = not_in_document(&pools);
    let fields: Vec<&str> = lost.iter().filter_map(|lost| lost.rsplit_once(": ").map(|(field, _)| field)).collect();
    assert_eq!(
        fields,
        ["ExternalPool edge: spec.fence", "ServicePool team: spec.fence", "ServicePool team: spec.serviceCIDRSelector"]
    );
}

#[test]
fn wrong_types_of_fields_that_the_document_lacks_are_mistakes() {
    struct Case {
        name: &'static str,
        object: Value,
        expected: Option<&'static str>,
    }
    let pool = |spec: Value| object("ServicePool", "all", spec);
    let cases = [
        Case { name: "a pool", object: pool(json!({"cidrs": ["10.96.1.0/24"], "fence": "Warn"})), expected: None },
        Case { name: "null", object: pool(json!({"cidrs": ["10.96.1.0/24"], "fence": null})), expected: None },
        Case {
            name: "an unknown fence",
            object: pool(json!({"fence": "Denny"})),
            expected: Some("spec.fence: unknown value \"Denny\": did you mean Deny?"),
        },
        Case {
            name: "a priority in words",
            object: pool(json!({"priority": "high"})),
            expected: Some("spec.priority: expected an integer, found the string \"high\""),
        },
        Case {
            name: "no namespace",
            object: pool(json!({"cidrs": ["10.96.1.0/24"], "match": {"namespaces": []}})),
            expected: Some("spec.match.namespaces: empty"),
        },
        Case {
            name: "a value as the document has it",
            object: object("ClusterIPPolicy", "default", json!({"order": "lowest"})),
            expected: Some("spec.order: unknown value \"lowest\": did you mean Lowest?"),
        },
        Case { name: "another object", object: json!({"kind": "Service"}), expected: None },
    ];
    for Case { name, object, expected } in cases {
        let found = mistake_of_type(&object);
        match (&found, expected) {
            (Some(found), Some(begin)) => assert!(found.starts_with(begin), "{name}: {found}"),
            (found, expected) => assert_eq!(found.as_deref(), expected, "{name}"),
        }
    }
}

/// Objects that were stored by the first version of `v1alpha1`, with all its fields, mean the same in every later
/// version. The files do not change when a version adds fields.
#[test]
fn objects_of_the_first_version_mean_the_same() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../e2e-tests/fixtures/crds/accepted");
    let read = |name| -> Value {
        serde_saphyr::from_str(&fs::read_to_string(fixtures.join(format!("first-version-{name}.yaml"))).unwrap())
            .unwrap()
    };
    let stored = ["service-pool", "external-pool", "node-block-pool", "policy"].map(read).to_vec();
    let expected = json!({
        "services": {
            "assumeOS": "linux",
            "order": "lowest",
            "explicit": "deny",
            "whenFull": "unmanaged",
            "unmatched": "outside",
            "annotateReason": true,
            "exemptNamespaces": ["kube-system"],
            "evidence": {"kinds": ["Deployment", "argoproj.io/v1alpha1/Rollout"]},
            "serviceCIDRs": ["10.96.0.0/12", "fd00:1::/108"],
            "pools": [{
                "name": "first-version",
                "cidrs": ["10.96.1.0/24", "10.96.2.0/24", "fd00:1::/112"],
                "reserved": 10,
                "exclude": ["10.96.1.77", "10.96.2.32/27", "fd00:1::7"],
                "bands": true,
                "match": {
                    "os": "linux",
                    "nodeLabels": {"disk": "ssd"},
                    "namespaces": ["shop"],
                    "namespaceSelector": {
                        "matchLabels": {"team": "a"},
                        "matchExpressions": [
                            {"key": "env", "operator": "NotIn", "values": ["prod"]},
                            {"key": "tier", "operator": "Exists"},
                        ],
                    },
                    "serviceSelector": {"matchExpressions": [
                        {"key": "tier", "operator": "In", "values": ["front", "back"]},
                        {"key": "legacy", "operator": "DoesNotExist"},
                    ]},
                },
                "reservations": [
                    {"address": "10.96.1.7", "namespace": "shop", "name": "web"},
                    {"address": "fd00:1::8", "namespace": "shop", "name": "web"},
                ],
            }],
        },
        "external": {
            "loadBalancerClass": "example.com/lan",
            "default": true,
            "pools": [{
                "name": "first-version",
                "cidrs": ["192.0.2.0/28", "10.0.9.10-10.0.9.40", "fd00:9::10 - fd00:9::40", "fd00:8::/64"],
                "exclude": ["192.0.2.7", "10.0.9.20-10.0.9.22", "192.0.2.8/30"],
                "match": {
                    "namespaces": ["shop"],
                    "namespaceSelector": {"matchLabels": {"team": "a"}},
                    "serviceSelector": {"matchLabels": {"tier": "front"}},
                },
                "nodes": {"matchLabels": {"edge": "yes"}},
            }],
        },
        "nodes": {
            "explicit": "deny",
            "pools": [{
                "name": "first-version",
                "cidrs": ["10.244.0.0/16", "fd00:244::/48"],
                "blockSize": {"ipv4": 24, "ipv6": 64},
                "exclude": ["10.244.7.0/24", "10.244.8.1"],
                "match": {
                    "os": "windows",
                    "nodeLabels": {"disk": "ssd"},
                    "nodeSelector": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]},
                },
            }],
        },
    });
    assert_eq!(document("all fields", stored), expected);
}
