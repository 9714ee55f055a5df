//! The pool that the core chooses with a snapshot is the pool that the module's answer names.

use std::sync::{Arc, RwLock};

use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};
use clusterip_host::cluster::lookups::stored_cluster::expected_pool;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::MODULE;
use crate::support::snapshots::snapshot;

/// A team's pool by namespace and labels, pools by two node labels, and no pool for everything else.
fn settings(lookups: &str) -> Value {
    json!({"services": {
        "evidence": {"lookups": lookups, "kinds": ["Deployment", "CronJob", "Pod", "example.org/v1/Rollout"]},
        "order": "spread",
        "exemptNamespaces": ["kube-system"],
        "pools": [
            {"name": "team", "cidrs": ["10.0.0.0/24"], "match": {
                "namespaceSelector": {"matchLabels": {"team": "yes"}},
                "serviceSelector": {"matchLabels": {"tier": "a"}},
            }},
            {"name": "arm", "cidrs": ["10.0.1.0/24"], "match": {"os": "linux", "nodeLabels": {"arch": "arm"}}},
            {"name": "windows", "cidrs": ["10.0.2.0/24"], "match": {"os": "windows"}},
            {"name": "office", "cidrs": ["10.0.3.0/24"], "match": {"os": "linux", "namespaces": ["office"]}},
        ],
    }})
}

fn labels() -> impl Strategy<Value = Value> {
    let (keys, values) = (prop::sample::select(vec!["app", "tier"]), prop::sample::select(vec!["a", "b"]));
    prop::collection::btree_map(keys, values, 0..3).prop_map(|labels| json!(labels))
}

/// A Pod spec with some of the fields that restrict its nodes. One of them can't be read.
fn pod_spec() -> impl Strategy<Value = Value> {
    let affinity = |key: &str, value: &str| {
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]},
        ]}}})
    };
    prop::sample::select(vec![
        json!({}),
        json!({"nodeSelector": {"kubernetes.io/os": "windows"}}),
        json!({"nodeSelector": {"arch": "arm"}}),
        json!({"os": {"name": "Windows"}}),
        json!({"nodeName": "n1"}),
        json!({"nodeName": "n2", "os": {"name": "linux"}}),
        json!({"runtimeClassName": "isolated"}),
        json!({"affinity": affinity("arch", "arm")}),
        json!({"nodeSelector": "all"}),
    ])
}

fn workload() -> impl Strategy<Value = Value> {
    let kinds = prop::sample::select(vec![
        ("apps/v1", "Deployment"),
        ("batch/v1", "CronJob"),
        ("v1", "Pod"),
        ("example.org/v1", "Rollout"),
    ]);
    let namespaces = prop::sample::select(vec!["shop", "office"]);
    (kinds, namespaces, 0..4_u8, labels(), pod_spec()).prop_map(
        |((api_version, kind), namespace, name, labels, pod_spec)| {
            let mut metadata = json!({"name": format!("w{name}"), "namespace": namespace});
            let template = json!({"metadata": {"labels": labels}, "spec": pod_spec});
            let spec = match kind {
                "Pod" => {
                    metadata["labels"] = labels;
                    pod_spec
                }
                "CronJob" => json!({"jobTemplate": {"spec": {"template": template}}}),
                _ => json!({"template": template}),
            };
            json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
        },
    )
}

/// Namespaces, Nodes and a RuntimeClass. Some of them are missing.
fn surroundings() -> impl Strategy<Value = Vec<Value>> {
    let namespace = |name: &str, team: &str, annotations: Value| {
        let metadata = json!({"name": name, "labels": {"team": team}, "annotations": annotations});
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    };
    let node = |name: &str, labels: Value| {
        let metadata = json!({"name": name, "labels": labels});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    };
    let all = vec![
        namespace("shop", "yes", json!({"clusterip-policy/os": "windows"})),
        namespace("office", "no", json!({"scheduler.alpha.kubernetes.io/node-selector": "arch=arm"})),
        node("n1", json!({"kubernetes.io/os": "linux", "arch": "arm"})),
        node("n2", json!({"kubernetes.io/os": "windows"})),
        json!({
            "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "isolated"},
            "scheduling": {"nodeSelector": {"kubernetes.io/os": "windows"}},
        }),
    ];
    prop::sample::subsequence(all, 0..=5)
}

fn request() -> impl Strategy<Value = Value> {
    let annotations = prop::sample::select(vec![
        json!({}),
        json!({"clusterip-policy/os": "linux"}),
        json!({"clusterip-policy/pool": "windows"}),
        json!({"clusterip-policy/pool": "team"}),
        json!({"clusterip-policy/pool": "unknown"}),
    ]);
    let namespaces = prop::sample::select(vec!["shop", "office", "kube-system"]);
    let spec = prop::sample::select(vec![json!({}), json!({"clusterIP": "None"}), json!({"clusterIP": "10.0.2.9"})]);
    (annotations, namespaces, labels(), labels(), spec).prop_map(|(annotations, namespace, labels, selector, spec)| {
        let mut spec = spec;
        spec["selector"] = selector;
        json!({
            "uid": "1",
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "namespace": namespace,
            "name": "web",
            "operation": "CREATE",
            "object": {
                "metadata": {"namespace": namespace, "name": "web", "labels": labels, "annotations": annotations},
                "spec": spec,
            },
        })
    })
}

/// The pool that the module's answer names.
fn answered(settings: &Value, snapshot: &Arc<RwLock<Snapshot>>, request: &Value) -> Option<String> {
    let parsed = Settings::from_value(settings).unwrap();
    let namespace = request["namespace"].as_str().unwrap();
    let calls = SnapshotCalls::new(Arc::clone(snapshot)).for_object(&request["object"]);
    let calls = calls.prefetching(&parsed, &ServiceKey::new(namespace, "web"));
    MODULE.validate(request, settings, Arc::new(calls)).unwrap().audit().unwrap().pool
}

/// The pool that the core chooses.
fn chosen(settings: &Value, snapshot: &RwLock<Snapshot>, request: &Value) -> Option<String> {
    let parsed = Settings::from_value(settings).unwrap();
    expected_pool(&parsed, snapshot, request).map(|pool| pool.name.clone())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn core_chooses_the_pool_that_the_answer_names(
        workloads in prop::collection::vec(workload(), 0..12),
        surroundings in surroundings(),
        request in request(),
    ) {
        let objects: Vec<Value> = workloads.into_iter().chain(surroundings).collect();
        let (settings, snapshot) = (settings("namespace"), Arc::new(RwLock::new(snapshot(&objects))));
        let creates = request["object"]["spec"].get("clusterIP").is_none();
        let answered = answered(&settings, &snapshot, &request).filter(|_| creates);
        prop_assert_eq!(chosen(&settings, &snapshot, &request), answered);
    }
}

#[test]
fn core_chooses_no_pool_if_only_the_module_can_tell() {
    struct Case {
        name: &'static str,
        lookups: &'static str,
        absent: bool,
        operation: &'static str,
        expected: Option<&'static str>,
    }
    let cases = [
        Case { name: "a create", lookups: "namespace", absent: false, operation: "CREATE", expected: Some("windows") },
        Case {
            name: "look-ups of the cluster",
            lookups: "cluster",
            absent: false,
            operation: "CREATE",
            expected: None,
        },
        Case { name: "a kind is missing", lookups: "namespace", absent: true, operation: "CREATE", expected: None },
        Case { name: "a deletion", lookups: "namespace", absent: false, operation: "DELETE", expected: None },
    ];
    for Case { name, lookups, absent, operation, expected } in cases {
        let mut snapshot = snapshot(&[json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "p", "labels": {"app": "web"}},
            "spec": {"os": {"name": "windows"}, "nodeName": "n3"},
        })]);
        if absent {
            snapshot.remove_api("example.org/v1", "Rollout");
            snapshot.remove("v1", "Pod", "shop", "p");
        }
        let request = json!({
            "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Service"}, "namespace": "shop", "name": "web",
            "operation": operation,
            "object": {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": {"app": "web"}}},
        });
        let chosen = chosen(&settings(lookups), &RwLock::new(snapshot), &request);
        assert_eq!(chosen.as_deref(), expected, "{name}");
    }
}

/// A tenant may have any number of workloads. Only the module's evaluations have a limit of time.
#[test]
fn core_leaves_services_of_many_workloads_to_the_module() {
    for (count, expected) in [(100, Some("windows")), (2_000, None)] {
        let pods: Vec<Value> = (0..count)
            .map(|number| {
                json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {"namespace": "shop", "name": format!("p{number:04}"), "labels": {"app": "web"}},
                    "spec": {"os": {"name": "windows"}},
                })
            })
            .collect();
        let request = json!({
            "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Service"}, "namespace": "shop", "name": "web",
            "operation": "CREATE",
            "object": {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": {"app": "web"}}},
        });
        let chosen = chosen(&settings("namespace"), &RwLock::new(snapshot(&pods)), &request);
        assert_eq!(chosen.as_deref(), expected, "{count} Pods");
    }
}
