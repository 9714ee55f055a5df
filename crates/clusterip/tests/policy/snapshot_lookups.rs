//! The native host answers look-ups of a snapshot exactly as Kubewarden does.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, RwLock};

use clusterip::cluster::snapshot::{Snapshot, SnapshotCalls};
use clusterip::policy::host_calls::{HostCall, HostCalls};
use clusterip::policy::module::{EMBEDDED, Module};
use clusterip_core::label_selector::Labels;
use proptest::prelude::*;
use serde_json::{Value, json};

fn snapshot(objects: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    objects.iter().for_each(|object| snapshot.insert(object.clone()));
    snapshot
}

/// The answer for these objects.
fn ask(objects: &[Value], call: &HostCall) -> Result<Value, String> {
    ask_snapshot(snapshot(objects), call)
}

fn ask_snapshot(snapshot: Snapshot, call: &HostCall) -> Result<Value, String> {
    let answer = SnapshotCalls::new(Arc::new(RwLock::new(snapshot))).answer(call)?;
    Ok(serde_json::from_slice(&answer).unwrap())
}

fn masks(paths: &[&str]) -> Option<BTreeSet<String>> {
    Some(paths.iter().map(|path| (*path).to_owned()).collect())
}

fn split(resource: &str) -> (String, String) {
    let (api_version, kind) = resource.rsplit_once('/').unwrap();
    (api_version.to_owned(), kind.to_owned())
}

/// A list of all objects of a kind such as `apps/v1/Deployment`.
fn list_all(resource: &str, field_masks: Option<BTreeSet<String>>) -> HostCall {
    let (api_version, kind) = split(resource);
    HostCall::ListAll { api_version, kind, label_selector: None, field_selector: None, field_masks }
}

fn list_of(resource: &str, namespace: &str) -> HostCall {
    let (api_version, kind) = split(resource);
    let namespace = namespace.to_owned();
    HostCall::ListNamespace {
        api_version,
        kind,
        namespace,
        label_selector: None,
        field_selector: None,
        field_masks: None,
    }
}

fn list_selected(labels: Option<&str>, fields: Option<&str>) -> HostCall {
    let own = |text: Option<&str>| text.map(str::to_owned);
    let (api_version, kind) = split("apps/v1/Deployment");
    let (label_selector, field_selector) = (own(labels), own(fields));
    HostCall::ListAll { api_version, kind, label_selector, field_selector, field_masks: None }
}

fn get(resource: &str, namespace: Option<&str>, name: &str, field_masks: Option<BTreeSet<String>>) -> HostCall {
    let (api_version, kind) = split(resource);
    let (name, namespace) = (name.to_owned(), namespace.map(str::to_owned));
    HostCall::Get { api_version, kind, name, namespace, disable_cache: true, field_masks }
}

fn deployment(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace, "name": name}})
}

fn service(name: &str, ips: &[&str]) -> Value {
    let mut spec = json!({"clusterIPs": ips});
    if let Some(first) = ips.first() {
        spec["clusterIP"] = json!(first);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec})
}

fn ip_address(name: &str) -> HostCall {
    get("networking.k8s.io/v1/IPAddress", None, name, masks(&["metadata"]))
}

fn no_ip_address(name: &str) -> Result<Value, String> {
    Err(format!("Cannot find networking.k8s.io/v1/IPAddress named '{name}' inside of namespace 'None'"))
}

#[test]
fn list_contains_objects_ordered_by_namespace_and_name() {
    let (b, a, office) = (deployment("shop", "b"), deployment("shop", "a"), deployment("office", "z"));
    let expected = json!({
        "apiVersion": "apps/v1",
        "kind": "DeploymentList",
        "metadata": {},
        "items": [office.clone(), a.clone(), b.clone()],
    });
    assert_eq!(ask(&[b, a, office], &list_all("apps/v1/Deployment", None)), Ok(expected));
}

#[test]
fn list_contains_only_its_kind_and_namespace() {
    struct Case {
        name: &'static str,
        call: HostCall,
        items: Vec<Value>,
    }
    let other_kind =
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": "shop", "name": "c"}});
    let other_group =
        json!({"apiVersion": "example.com/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "d"}});
    let (a, b) = (deployment("shop", "a"), deployment("shop-2", "b"));
    let objects = [a.clone(), b.clone(), other_kind.clone(), other_group.clone()];
    let rows = [
        Case { name: "every namespace", call: list_all("apps/v1/Deployment", None), items: vec![a.clone(), b.clone()] },
        Case { name: "one namespace", call: list_of("apps/v1/Deployment", "shop"), items: vec![a.clone()] },
        Case { name: "a namespace whose name goes on", call: list_of("apps/v1/Deployment", "shop-2"), items: vec![b] },
        Case { name: "a namespace without any", call: list_of("apps/v1/Deployment", "office"), items: vec![] },
        Case { name: "another kind", call: list_all("apps/v1/StatefulSet", None), items: vec![other_kind] },
        Case {
            name: "the kind of another group",
            call: list_all("example.com/v1/Deployment", None),
            items: vec![other_group],
        },
        Case { name: "a kind without objects", call: list_all("batch/v1/Job", None), items: vec![] },
    ];
    for Case { name, call, items } in rows {
        assert_eq!(ask(&objects, &call).unwrap()["items"], Value::from(items), "{name}");
    }
}

#[test]
fn inserting_an_object_again_replaces_it() {
    let mut newer = deployment("shop", "a");
    newer["spec"] = json!({"replicas": 2});
    let answer = ask(&[deployment("shop", "a"), newer.clone()], &list_all("apps/v1/Deployment", None)).unwrap();
    assert_eq!(answer["items"], json!([newer]));
}

#[test]
fn masks_keep_only_the_named_fields() {
    struct Case {
        name: &'static str,
        paths: Option<Vec<&'static str>>,
        fields: Value,
        kept: Value,
    }
    let rows = [
        Case {
            name: "no masks at all",
            paths: None,
            fields: json!({"spec": {"a": 1}, "status": 5}),
            kept: json!({"spec": {"a": 1}, "status": 5}),
        },
        Case {
            name: "an empty set is none",
            paths: Some(vec![]),
            fields: json!({"spec": {"a": 1}}),
            kept: json!({"spec": {"a": 1}}),
        },
        Case {
            name: "a field with all that is below",
            paths: Some(vec!["spec"]),
            fields: json!({"spec": {"a": {"b": [1]}}, "status": {}}),
            kept: json!({"spec": {"a": {"b": [1]}}}),
        },
        Case {
            name: "fields of a field",
            paths: Some(vec!["spec.a.b", "spec.c"]),
            fields: json!({"spec": {"a": {"b": 1, "x": 2}, "c": 3, "x": 4}}),
            kept: json!({"spec": {"a": {"b": 1}, "c": 3}}),
        },
        Case {
            name: "lists are passed through",
            paths: Some(vec!["spec.containers.image"]),
            fields: json!({"spec": {"containers": [{"name": "a", "image": "b"}, {"name": "c"}, "text"]}}),
            kept: json!({"spec": {"containers": [{"image": "b"}, {}, "text"]}}),
        },
        Case {
            name: "lists of lists too",
            paths: Some(vec!["spec.a.b"]),
            fields: json!({"spec": {"a": [[{"b": 1, "c": 2}], []]}}),
            kept: json!({"spec": {"a": [[{"b": 1}], []]}}),
        },
        Case {
            name: "of a path and a longer one, the longer counts",
            paths: Some(vec!["spec", "spec.a"]),
            fields: json!({"spec": {"a": 1, "b": 2}}),
            kept: json!({"spec": {"a": 1}}),
        },
        Case {
            name: "a value where the mask goes on stays",
            paths: Some(vec!["spec.a.b"]),
            fields: json!({"spec": {"a": 5, "b": 6}}),
            kept: json!({"spec": {"a": 5}}),
        },
        Case {
            name: "null too",
            paths: Some(vec!["spec.a.b"]),
            fields: json!({"spec": {"a": null}}),
            kept: json!({"spec": {"a": null}}),
        },
        Case {
            name: "a parent that loses everything stays",
            paths: Some(vec!["spec.x"]),
            fields: json!({"spec": {"a": 1}}),
            kept: json!({"spec": {}}),
        },
        Case {
            name: "a mask that no object has",
            paths: Some(vec!["nothing"]),
            fields: json!({"spec": {"a": 1}}),
            kept: json!({}),
        },
        Case {
            name: "a key with a dot can't be named",
            paths: Some(vec!["spec.a.b"]),
            fields: json!({"spec": {"a.b": 1}}),
            kept: json!({"spec": {}}),
        },
    ];
    for Case { name, paths, fields, kept } in rows {
        let paths = paths.map(|paths| paths.into_iter().map(str::to_owned).collect::<BTreeSet<_>>());
        let whole = |fields: &Value| {
            let mut object = deployment("shop", "a");
            object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            object
        };
        let objects = [whole(&fields)];
        let listed = ask(&objects, &list_all("apps/v1/Deployment", paths.clone())).unwrap();
        assert_eq!(listed["items"], json!([whole(&kept)]), "{name}, listed");
        let got = ask(&objects, &get("apps/v1/Deployment", Some("shop"), "a", paths));
        assert_eq!(got, Ok(whole(&kept)), "{name}, got");
    }
}

#[test]
fn metadata_is_complete_except_for_fields_that_a_cache_omits() {
    const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let metadata = |annotations: Value| json!({"name": "a", "namespace": "shop", "labels": {"app": "web"}, "annotations": annotations, "finalizers": ["x/y"]});
    let mut object = deployment("shop", "a");
    object["metadata"] = metadata(json!({LAST_APPLIED: "{}", "team": "red"}));
    object["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
    let mut cached = deployment("shop", "a");
    cached["metadata"] = metadata(json!({"team": "red"}));
    for paths in [None, masks(&["metadata"]), masks(&["metadata.name"]), masks(&["spec.x"])] {
        let objects = [object.clone()];
        let listed = ask(&objects, &list_all("apps/v1/Deployment", paths.clone())).unwrap();
        assert_eq!(listed["items"], json!([cached]), "listed with {paths:?}");
        let got = ask(&objects, &get("apps/v1/Deployment", Some("shop"), "a", paths.clone()));
        assert_eq!(got, Ok(object.clone()), "got with {paths:?}");
    }
}

#[test]
fn selectors_filter_a_list() {
    struct Case {
        name: &'static str,
        labels: Option<&'static str>,
        fields: Option<&'static str>,
        expected: Vec<&'static str>,
    }
    let labelled = |name: &str, labels: Value| {
        let mut object = deployment("shop", name);
        object["metadata"]["labels"] = labels;
        object
    };
    let objects = [
        labelled("a", json!({"app": "web", "tier": "front"})),
        labelled("b", json!({"app": "db"})),
        deployment("office", "c"),
    ];
    let rows = [
        Case { name: "none", labels: None, fields: None, expected: vec!["c", "a", "b"] },
        Case { name: "a label", labels: Some("app=web"), fields: None, expected: vec!["a"] },
        Case { name: "one of two values", labels: Some("app in (web,db)"), fields: None, expected: vec!["a", "b"] },
        Case { name: "another value, or no label", labels: Some("app!=web"), fields: None, expected: vec!["c", "b"] },
        Case { name: "no label", labels: Some("!app"), fields: None, expected: vec!["c"] },
        Case { name: "two labels", labels: Some("app,tier=front"), fields: None, expected: vec!["a"] },
        Case { name: "the name", labels: None, fields: Some("metadata.name=b"), expected: vec!["b"] },
        Case { name: "another namespace", labels: None, fields: Some("metadata.namespace!=shop"), expected: vec!["c"] },
        Case { name: "labels and fields", labels: Some("app"), fields: Some("metadata.name!=a"), expected: vec!["b"] },
    ];
    for Case { name, labels, fields, expected } in rows {
        let answer = ask(&objects, &list_selected(labels, fields)).unwrap();
        let names: Vec<&str> =
            answer["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{name}");
    }
    for (labels, fields) in [(Some("app like web"), None), (None, Some("metadata.name"))] {
        let error = ask(&objects, &list_selected(labels, fields)).unwrap_err();
        assert!(error.starts_with("unable to parse requirement"), "{error}");
    }
}

#[test]
fn errors_have_the_words_of_kubewarden() {
    struct Case {
        name: &'static str,
        call: HostCall,
        expected: Result<Value, &'static str>,
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let objects = [deployment("shop", "a"), node.clone()];
    let rows = [
        Case {
            name: "an object that is not there",
            call: get("apps/v1/Deployment", Some("shop"), "b", None),
            expected: Err("Cannot find apps/v1/Deployment named 'b' inside of namespace 'Some(\"shop\")'"),
        },
        Case {
            name: "an object of another namespace",
            call: get("apps/v1/Deployment", Some("office"), "a", None),
            expected: Err("Cannot find apps/v1/Deployment named 'a' inside of namespace 'Some(\"office\")'"),
        },
        Case {
            name: "a Node that is not there",
            call: get("v1/Node", None, "n2", None),
            expected: Err("Cannot find v1/Node named 'n2' inside of namespace 'None'"),
        },
        Case { name: "a Node", call: get("v1/Node", None, "n1", None), expected: Ok(node.clone()) },
        Case {
            name: "a Node, as if it had a namespace",
            call: get("v1/Node", Some("shop"), "n1", None),
            expected: Ok(node.clone()),
        },
        Case {
            name: "a namespaced kind without a namespace",
            call: get("apps/v1/Deployment", None, "a", None),
            expected: Err("Resource apps/v1/Deployment is namespaced, but no namespace was provided"),
        },
        Case {
            name: "a cluster-wide kind in a namespace",
            call: list_of("v1/Node", "shop"),
            expected: Err("resource v1/Node is cluster wide. Cannot search for it inside of a namespace"),
        },
    ];
    for Case { name, call, expected } in rows {
        assert_eq!(ask(&objects, &call), expected.map_err(str::to_owned), "{name}");
    }
}

#[test]
fn missing_kind_fails_every_look_up() {
    for resource in ["apps/v1/Deployment", "networking.k8s.io/v1/IPAddress"] {
        for call in [
            list_all(resource, None),
            list_of(resource, "shop"),
            get(resource, None, "10.0.0.1", None),
            get(resource, Some("shop"), "a", None),
        ] {
            let mut snapshot = snapshot(&[deployment("shop", "a"), service("a", &["10.0.0.1"])]);
            let (api_version, kind) = split(resource);
            snapshot.remove_api(&api_version, &kind);
            let expected = Err(format!("Cannot find resource {resource}"));
            assert_eq!(ask_snapshot(snapshot, &call), expected, "{call:?}");
        }
    }
}

#[test]
fn every_address_of_a_service_has_an_ip_address_object() {
    struct Case {
        name: &'static str,
        ip: &'static str,
        expected: Result<Value, String>,
    }
    let objects = [service("web", &["10.0.0.9", "fd00::9"]), service("quiet", &["None"]), service("none", &[])];
    let ip_object =
        |ip: &str| Ok(json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": ip}}));
    let rows = [
        Case { name: "the first address", ip: "10.0.0.9", expected: ip_object("10.0.0.9") },
        Case { name: "the second one", ip: "fd00::9", expected: ip_object("fd00::9") },
        Case { name: "one that no Service has", ip: "10.0.0.8", expected: no_ip_address("10.0.0.8") },
        Case { name: "one that is written another way", ip: "fd00:0::9", expected: no_ip_address("fd00:0::9") },
        Case { name: "none", ip: "None", expected: no_ip_address("None") },
    ];
    for Case { name, ip, expected } in rows {
        assert_eq!(ask(&objects, &ip_address(ip)), expected, "{name}");
    }
    let parent = json!({"parentRef": {"group": "", "resource": "services", "namespace": "shop", "name": "web"}});
    let whole = ask(&objects, &get("networking.k8s.io/v1/IPAddress", None, "10.0.0.9", None)).unwrap();
    assert_eq!(whole["spec"], parent);
}

#[test]
fn ip_address_object_exists_while_a_service_has_the_address() {
    struct Case {
        name: &'static str,
        objects: Vec<Value>,
        there: bool,
    }
    let (a, b) = (service("a", &["10.0.0.1"]), service("b", &["10.0.0.1"]));
    let (a_moved, b_moved) = (service("a", &["10.0.0.2"]), service("b", &["10.0.0.2"]));
    let of_another =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.0.0.1"}});
    let rows = [
        Case { name: "of one Service", objects: vec![a.clone()], there: true },
        Case { name: "of one that moved", objects: vec![a.clone(), a_moved.clone()], there: false },
        Case {
            name: "of one that moved and came back",
            objects: vec![a.clone(), a_moved.clone(), a.clone()],
            there: true,
        },
        Case { name: "of two, one of which moved", objects: vec![a.clone(), b.clone(), b_moved.clone()], there: true },
        Case {
            name: "of two, the other of which moved",
            objects: vec![a.clone(), b.clone(), a_moved.clone()],
            there: true,
        },
        Case { name: "of two that moved", objects: vec![a.clone(), b, a_moved.clone(), b_moved], there: false },
        Case {
            name: "of one that moved, but an object of its own",
            objects: vec![a, of_another, a_moved],
            there: true,
        },
    ];
    for Case { name, objects, there } in rows {
        assert_eq!(ask(&objects, &ip_address("10.0.0.1")).is_ok(), there, "{name}");
    }
}

// --- Answers for one Service

static MODULE: LazyLock<Module> = LazyLock::new(|| Module::new(EMBEDDED).unwrap());

fn labels() -> impl Strategy<Value = Labels> {
    prop::collection::btree_map(
        prop::sample::select(vec!["app", "tier", "track"]).prop_map(str::to_owned),
        prop::sample::select(vec!["a", "b"]).prop_map(str::to_owned),
        0..3,
    )
}

fn workload() -> impl Strategy<Value = Value> {
    let kinds = prop::sample::select(vec![("apps/v1", "Deployment"), ("batch/v1", "CronJob"), ("v1", "Pod")]);
    let namespaces = prop::sample::select(vec!["shop", "office"]);
    let os = prop::sample::select(vec![None, Some("linux"), Some("windows")]);
    let own_labels = labels();
    (kinds, namespaces, 0..6_u8, labels(), own_labels, os).prop_map(
        |((api_version, kind), namespace, name, pod_labels, own_labels, os)| {
            let pod_spec = os.map_or(json!({}), |os| json!({"nodeSelector": {"kubernetes.io/os": os}}));
            let metadata =
                |labels: Labels| json!({"name": format!("w{name}"), "namespace": namespace, "labels": labels});
            let template = json!({"metadata": {"labels": pod_labels}, "spec": pod_spec});
            let (metadata, spec) = match kind {
                "Pod" => (metadata(pod_labels), pod_spec),
                "CronJob" => (metadata(own_labels), json!({"jobTemplate": {"spec": {"template": template}}})),
                _ => (metadata(own_labels), json!({"template": template})),
            };
            json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn omitting_unselected_workloads_does_not_change_answers(
        workloads in prop::collection::vec(workload(), 0..20),
        selector in labels(),
        lookups in prop::sample::select(vec!["namespace", "cluster"]),
    ) {
        let settings = json!({"services": {"evidence": {"kinds": ["Deployment", "CronJob", "Pod"], "lookups": lookups}}});
        let request = json!({
            "uid": "1",
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "namespace": "shop",
            "name": "web",
            "operation": "CREATE",
            "object": {"metadata": {"namespace": "shop", "name": "web"}, "spec": {"selector": selector}},
        });
        let all = SnapshotCalls::new(Arc::new(RwLock::new(snapshot(&workloads))));
        let few = all.clone().for_selector(selector);
        let answer = |calls: SnapshotCalls| MODULE.validate(&request, &settings, Arc::new(calls)).unwrap();
        prop_assert_eq!(answer(all), answer(few));
    }
}

#[test]
fn list_for_a_service_contains_only_selected_workloads() {
    struct Case {
        name: &'static str,
        selector: &'static [(&'static str, &'static str)],
        expected: &'static [&'static str],
    }
    let pods = |name: &str, labels: Value| {
        let mut object = deployment("shop", name);
        object["spec"] = json!({"template": {"metadata": {"labels": labels}}});
        object
    };
    let objects =
        [pods("a", json!({"app": "web", "tier": "front"})), pods("b", json!({"app": "web"})), pods("c", json!({}))];
    let rows = [
        Case { name: "one label", selector: &[("app", "web")], expected: &["a", "b"] },
        Case { name: "two labels", selector: &[("app", "web"), ("tier", "front")], expected: &["a"] },
        Case { name: "a label with another value", selector: &[("app", "db")], expected: &[] },
        Case { name: "one of two is missing", selector: &[("app", "web"), ("track", "x")], expected: &[] },
        Case {
            name: "no selector selects nothing, but nothing is left out",
            selector: &[],
            expected: &["a", "b", "c"],
        },
    ];
    for Case { name, selector, expected } in rows {
        let selector: Labels = selector.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let calls = SnapshotCalls::new(Arc::new(RwLock::new(snapshot(&objects)))).for_selector(selector);
        let answer: Value =
            serde_json::from_slice(&calls.answer(&list_of("apps/v1/Deployment", "shop")).unwrap()).unwrap();
        let names: Vec<&str> =
            answer["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{name}");
    }
}

#[test]
fn list_for_a_service_is_bounded() {
    let large = |nth: usize| {
        let mut object = deployment("shop", &format!("web-{nth:02}"));
        let selector = json!({"filling": "x".repeat(100_000)});
        object["spec"] =
            json!({"template": {"metadata": {"labels": {"app": "web"}}, "spec": {"nodeSelector": selector}}});
        object
    };
    let objects: Vec<Value> = (0..30).map(large).collect();
    let calls = SnapshotCalls::new(Arc::new(RwLock::new(snapshot(&objects))));
    let calls = calls.for_selector([("app".to_owned(), "web".to_owned())].into());
    let answer = calls.answer(&list_of("apps/v1/Deployment", "shop")).unwrap();
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    let names: Vec<&str> =
        answer["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..10).map(|nth| format!("web-{nth:02}")).collect();
    assert_eq!(names, expected, "the first of 1 MiB");
}

#[test]
fn answers_reflect_changes_of_the_snapshot() {
    let shared = Arc::new(RwLock::new(Snapshot::default()));
    let calls = SnapshotCalls::new(Arc::clone(&shared)).for_selector([("app".to_owned(), "web".to_owned())].into());
    let count = || {
        let answer = calls.answer(&list_of("apps/v1/Deployment", "shop")).unwrap();
        serde_json::from_slice::<Value>(&answer).unwrap()["items"].as_array().unwrap().len()
    };
    let mut object = deployment("shop", "a");
    object["spec"] = json!({"template": {"metadata": {"labels": {"app": "web"}}}});
    assert_eq!(count(), 0);
    shared.write().unwrap().insert(object.clone());
    assert_eq!(count(), 1);
    object["spec"]["template"]["metadata"]["labels"] = json!({"app": "db"});
    shared.write().unwrap().insert(object);
    assert_eq!(count(), 0);
}

#[test]
fn invalid_host_calls_are_distinguished() {
    struct Case {
        name: &'static str,
        call: [&'static str; 3],
        payload: &'static [u8],
        expected: &'static str,
    }
    let good: &[u8] = br#"{"api_version":"v1","kind":"Node","name":"n1","disable_cache":false}"#;
    let rows = [
        Case {
            name: "another binding",
            call: ["other", "kubernetes", "get_resource"],
            payload: good,
            expected: "unknown binding: other",
        },
        Case {
            name: "another namespace",
            call: ["kubewarden", "oci", "v1/manifest_digest"],
            payload: good,
            expected: "unknown namespace: oci",
        },
        Case {
            name: "another operation",
            call: ["kubewarden", "kubernetes", "can_i"],
            payload: good,
            expected: "unknown operation: can_i",
        },
        Case {
            name: "no JSON",
            call: ["kubewarden", "kubernetes", "get_resource"],
            payload: b"hello",
            expected: "get_resource: expected value",
        },
        Case {
            name: "a field is missing",
            call: ["kubewarden", "kubernetes", "get_resource"],
            payload: br#"{"kind":"Node"}"#,
            expected: "get_resource: missing field",
        },
        Case {
            name: "a list",
            call: ["kubewarden", "kubernetes", "list_resources_all"],
            payload: br#"{"api_version":5,"kind":"Node"}"#,
            expected: "list_resources_all: invalid type",
        },
    ];
    for Case { name, call: [binding, namespace, operation], payload, expected } in rows {
        let error = HostCall::read(binding, namespace, operation, payload).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{name}: {error}");
    }
    assert_eq!(
        HostCall::read("kubewarden", "kubernetes", "get_resource", good),
        Ok(HostCall::Get {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: "n1".to_owned(),
            namespace: None,
            disable_cache: false,
            field_masks: None,
        })
    );
}
