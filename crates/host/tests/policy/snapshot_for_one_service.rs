//! The look-ups for one Service omit the workloads that its selector does not match.

use std::sync::{Arc, RwLock};

use clusterip_core::label_selector::Labels;
use clusterip_host::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};
use clusterip_host::policy::host_calls::HostCalls;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::MODULE;
use crate::support::snapshots::{deployment, list_of, snapshot};

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
