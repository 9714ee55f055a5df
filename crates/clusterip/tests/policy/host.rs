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
    let other_kind =
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": "shop", "name": "c"}});
    let other_group =
        json!({"apiVersion": "example.com/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": "d"}});
    let (a, b) = (deployment("shop", "a"), deployment("shop-2", "b"));
    let objects = [a.clone(), b.clone(), other_kind.clone(), other_group.clone()];
    let rows = [
        ("every namespace", list_all("apps/v1/Deployment", None), vec![a.clone(), b.clone()]),
        ("one namespace", list_of("apps/v1/Deployment", "shop"), vec![a.clone()]),
        ("a namespace whose name goes on", list_of("apps/v1/Deployment", "shop-2"), vec![b]),
        ("a namespace without any", list_of("apps/v1/Deployment", "office"), vec![]),
        ("another kind", list_all("apps/v1/StatefulSet", None), vec![other_kind]),
        ("the kind of another group", list_all("example.com/v1/Deployment", None), vec![other_group]),
        ("a kind without objects", list_all("batch/v1/Job", None), vec![]),
    ];
    for (name, call, items) in rows {
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
    let rows = [
        ("no masks at all", None, json!({"spec": {"a": 1}, "status": 5}), json!({"spec": {"a": 1}, "status": 5})),
        ("an empty set is none", Some(vec![]), json!({"spec": {"a": 1}}), json!({"spec": {"a": 1}})),
        (
            "a field with all that is below",
            Some(vec!["spec"]),
            json!({"spec": {"a": {"b": [1]}}, "status": {}}),
            json!({"spec": {"a": {"b": [1]}}}),
        ),
        (
            "fields of a field",
            Some(vec!["spec.a.b", "spec.c"]),
            json!({"spec": {"a": {"b": 1, "x": 2}, "c": 3, "x": 4}}),
            json!({"spec": {"a": {"b": 1}, "c": 3}}),
        ),
        (
            "lists are passed through",
            Some(vec!["spec.containers.image"]),
            json!({"spec": {"containers": [{"name": "a", "image": "b"}, {"name": "c"}, "text"]}}),
            json!({"spec": {"containers": [{"image": "b"}, {}, "text"]}}),
        ),
        (
            "lists of lists too",
            Some(vec!["spec.a.b"]),
            json!({"spec": {"a": [[{"b": 1, "c": 2}], []]}}),
            json!({"spec": {"a": [[{"b": 1}], []]}}),
        ),
        (
            "of a path and a longer one, the longer counts",
            Some(vec!["spec", "spec.a"]),
            json!({"spec": {"a": 1, "b": 2}}),
            json!({"spec": {"a": 1}}),
        ),
        (
            "a value where the mask goes on stays",
            Some(vec!["spec.a.b"]),
            json!({"spec": {"a": 5, "b": 6}}),
            json!({"spec": {"a": 5}}),
        ),
        ("null too", Some(vec!["spec.a.b"]), json!({"spec": {"a": null}}), json!({"spec": {"a": null}})),
        ("a parent that loses everything stays", Some(vec!["spec.x"]), json!({"spec": {"a": 1}}), json!({"spec": {}})),
        ("a mask that no object has", Some(vec!["nothing"]), json!({"spec": {"a": 1}}), json!({})),
        ("a key with a dot can't be named", Some(vec!["spec.a.b"]), json!({"spec": {"a.b": 1}}), json!({"spec": {}})),
    ];
    for (name, paths, fields, kept) in rows {
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
        ("none", None, None, vec!["c", "a", "b"]),
        ("a label", Some("app=web"), None, vec!["a"]),
        ("one of two values", Some("app in (web,db)"), None, vec!["a", "b"]),
        ("another value, or no label", Some("app!=web"), None, vec!["c", "b"]),
        ("no label", Some("!app"), None, vec!["c"]),
        ("two labels", Some("app,tier=front"), None, vec!["a"]),
        ("the name", None, Some("metadata.name=b"), vec!["b"]),
        ("another namespace", None, Some("metadata.namespace!=shop"), vec!["c"]),
        ("labels and fields", Some("app"), Some("metadata.name!=a"), vec!["b"]),
    ];
    for (name, labels, fields, expected) in rows {
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
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
    let objects = [deployment("shop", "a"), node.clone()];
    let rows = [
        (
            "an object that is not there",
            get("apps/v1/Deployment", Some("shop"), "b", None),
            Err("Cannot find apps/v1/Deployment named 'b' inside of namespace 'Some(\"shop\")'"),
        ),
        (
            "an object of another namespace",
            get("apps/v1/Deployment", Some("office"), "a", None),
            Err("Cannot find apps/v1/Deployment named 'a' inside of namespace 'Some(\"office\")'"),
        ),
        (
            "a Node that is not there",
            get("v1/Node", None, "n2", None),
            Err("Cannot find v1/Node named 'n2' inside of namespace 'None'"),
        ),
        ("a Node", get("v1/Node", None, "n1", None), Ok(node.clone())),
        ("a Node, as if it had a namespace", get("v1/Node", Some("shop"), "n1", None), Ok(node.clone())),
        (
            "a namespaced kind without a namespace",
            get("apps/v1/Deployment", None, "a", None),
            Err("Resource apps/v1/Deployment is namespaced, but no namespace was provided"),
        ),
        (
            "a cluster-wide kind in a namespace",
            list_of("v1/Node", "shop"),
            Err("resource v1/Node is cluster wide. Cannot search for it inside of a namespace"),
        ),
    ];
    for (name, call, expected) in rows {
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
    let objects = [service("web", &["10.0.0.9", "fd00::9"]), service("quiet", &["None"]), service("none", &[])];
    let ip_object =
        |ip: &str| Ok(json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": ip}}));
    let rows = [
        ("the first address", "10.0.0.9", ip_object("10.0.0.9")),
        ("the second one", "fd00::9", ip_object("fd00::9")),
        ("one that no Service has", "10.0.0.8", no_ip_address("10.0.0.8")),
        ("one that is written another way", "fd00:0::9", no_ip_address("fd00:0::9")),
        ("none", "None", no_ip_address("None")),
    ];
    for (name, ip, expected) in rows {
        assert_eq!(ask(&objects, &ip_address(ip)), expected, "{name}");
    }
    let parent = json!({"parentRef": {"group": "", "resource": "services", "namespace": "shop", "name": "web"}});
    let whole = ask(&objects, &get("networking.k8s.io/v1/IPAddress", None, "10.0.0.9", None)).unwrap();
    assert_eq!(whole["spec"], parent);
}

#[test]
fn ip_address_object_exists_while_a_service_has_the_address() {
    let (a, b) = (service("a", &["10.0.0.1"]), service("b", &["10.0.0.1"]));
    let (a_moved, b_moved) = (service("a", &["10.0.0.2"]), service("b", &["10.0.0.2"]));
    let of_another =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": "10.0.0.1"}});
    let rows = [
        ("of one Service", vec![a.clone()], true),
        ("of one that moved", vec![a.clone(), a_moved.clone()], false),
        ("of one that moved and came back", vec![a.clone(), a_moved.clone(), a.clone()], true),
        ("of two, one of which moved", vec![a.clone(), b.clone(), b_moved.clone()], true),
        ("of two, the other of which moved", vec![a.clone(), b.clone(), a_moved.clone()], true),
        ("of two that moved", vec![a.clone(), b, a_moved.clone(), b_moved], false),
        ("of one that moved, but an object of its own", vec![a, of_another, a_moved], true),
    ];
    for (name, objects, there) in rows {
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
    let pods = |name: &str, labels: Value| {
        let mut object = deployment("shop", name);
        object["spec"] = json!({"template": {"metadata": {"labels": labels}}});
        object
    };
    let objects =
        [pods("a", json!({"app": "web", "tier": "front"})), pods("b", json!({"app": "web"})), pods("c", json!({}))];
    type Row<'r> = (&'r str, &'r [(&'r str, &'r str)], &'r [&'r str]);
    let rows: [Row<'_>; 5] = [
        ("one label", &[("app", "web")], &["a", "b"]),
        ("two labels", &[("app", "web"), ("tier", "front")], &["a"]),
        ("a label with another value", &[("app", "db")], &[]),
        ("one of two is missing", &[("app", "web"), ("track", "x")], &[]),
        ("no selector selects nothing, but nothing is left out", &[], &["a", "b", "c"]),
    ];
    for (name, selector, expected) in rows {
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
    let good: &[u8] = br#"{"api_version":"v1","kind":"Node","name":"n1","disable_cache":false}"#;
    let rows: [(&str, [&str; 3], &[u8], &str); 6] = [
        ("another binding", ["other", "kubernetes", "get_resource"], good, "unknown binding: other"),
        ("another namespace", ["kubewarden", "oci", "v1/manifest_digest"], good, "unknown namespace: oci"),
        ("another operation", ["kubewarden", "kubernetes", "can_i"], good, "unknown operation: can_i"),
        ("no JSON", ["kubewarden", "kubernetes", "get_resource"], b"hello", "get_resource: expected value"),
        (
            "a field is missing",
            ["kubewarden", "kubernetes", "get_resource"],
            br#"{"kind":"Node"}"#,
            "get_resource: missing field",
        ),
        (
            "a list",
            ["kubewarden", "kubernetes", "list_resources_all"],
            br#"{"api_version":5,"kind":"Node"}"#,
            "list_resources_all: invalid type",
        ),
    ];
    for (name, [binding, namespace, operation], payload, expected) in rows {
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
