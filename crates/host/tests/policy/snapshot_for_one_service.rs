//! The look-ups for one Service omit the workloads that its selector does not match.

use std::sync::{Arc, LazyLock, RwLock};

use clusterip_core::label_selector::Labels;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};
use clusterip_host::policy::host_calls::HostCalls;
use clusterip_host::policy::module::{EMBEDDED, Module};
use clusterip_host::policy::node_request::NodeRequest;
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::snapshots::{deployment, list_of, service, snapshot};

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
        let parsed = Settings::from_value(&settings).unwrap();
        let prefetched = few.clone().prefetching(&parsed, &ServiceKey::new("shop", "web"));
        let answer = |calls: SnapshotCalls| MODULE.validate(&request, &settings, Arc::new(calls)).unwrap();
        let expected = answer(all);
        prop_assert_eq!(&answer(few), &expected);
        prop_assert_eq!(&answer(prefetched), &expected);
    }

    #[test]
    fn prefetched_addresses_do_not_change_answers(
        services in prop::collection::btree_map(1_u8..70, 0..3_usize, 0..70),
        more in prop::collection::vec(1_u8..70, 0..6),
        first in 0_u8..3,
        order in prop::sample::select(vec!["lowest", "spread"]),
    ) {
        let settings = json!({"services": {
            "order": order,
            "pools": [{"name": "all", "cidrs": [format!("10.0.0.{}/26", first * 64)], "exclude": [format!("10.0.0.{}", first * 64 + 7)]}],
        }});
        // Service `shop/web` has some addresses, some addresses have several Services, and some have a second address.
        let names = ["web", "other", "third"];
        let mut objects: Vec<Value> = Vec::new();
        for (last, owner) in services.iter().map(|(last, owner)| (*last, *owner)).chain(more.iter().map(|last| (*last, 3))) {
            let name = names.get(owner).map_or(format!("more-{last}"), |name| format!("{name}-{last}"));
            let name = if name == format!("web-{last}") && last % 16 == 0 { "web".to_owned() } else { name };
            objects.push(service(&name, &[&format!("10.0.0.{last}"), &format!("10.0.0.{}", last + 70)]));
        }
        let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}});
        let request = json!({
            "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Service"}, "namespace": "shop", "name": "web",
            "operation": "CREATE", "object": object,
        });
        let all = SnapshotCalls::new(Arc::new(RwLock::new(snapshot(&objects))));
        let parsed = Settings::from_value(&settings).unwrap();
        let prefetched = all.clone().for_object(&object).prefetching(&parsed, &ServiceKey::new("shop", "web"));
        let answer = |calls: SnapshotCalls| MODULE.validate(&request, &settings, Arc::new(calls)).unwrap();
        prop_assert_eq!(answer(prefetched), answer(all));
    }

    #[test]
    fn omitting_nodes_without_overlap_does_not_change_answers(
        nodes in prop::collection::vec((0_u8..8, 24_u8..=28, 0_u8..6), 0..20),
        own in (0_u8..8, 24_u8..=28),
    ) {
        let block = |third: u8, length: u8| IpNet::new([10, 0, third / 2, third % 2 * 128].into(), length).unwrap().trunc();
        let node = |name: u8, block: IpNet| json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("n{name}")}, "spec": {"podCIDRs": [block]},
        });
        let objects: Vec<Value> = nodes.iter().map(|(third, length, name)| node(*name, block(*third, *length))).collect();
        let settings = json!({"nodes": {"pools": [{"name": "all", "cidrs": ["10.0.0.0/16"]}]}});
        let object = node(0, block(own.0, own.1));
        let all = SnapshotCalls::new(Arc::new(RwLock::new(snapshot(&objects))));
        let few = all.clone().for_object(&object);
        let answer = |calls: SnapshotCalls| MODULE.validate(&NodeRequest::created(&object), &settings, Arc::new(calls)).unwrap();
        prop_assert_eq!(answer(few), answer(all));
    }
}

#[test]
fn a_host_sends_the_kinds_with_selected_workloads_and_the_spans_of_used_addresses() {
    struct Case {
        name: &'static str,
        settings: Value,
        selector: Value,
        kinds: Option<&'static [&'static str]>,
        used: Option<&'static [&'static str]>,
    }
    let mut pod = deployment("shop", "web");
    pod["spec"] = json!({"template": {"metadata": {"labels": {"app": "web", "tier": "front"}}}});
    let services =
        (1..=30).filter(|last| *last != 20).map(|last| service(&format!("s-{last}"), &[&format!("10.0.0.{last}")]));
    let objects: Vec<Value> =
        services.chain([pod, service("web", &["10.0.0.10", "fd00::1"]), service("s-9", &["10.0.0.9"])]).collect();
    let with = |order: &str, lookups: &str| {
        json!({"services": {
            "order": order,
            "evidence": {"lookups": lookups, "kinds": ["Deployment", "Job", "example.org/v1/Rollout", "example.org/v1/Node"]},
        }})
    };
    let web = || json!({"app": "web"});
    let cases = [
        Case {
            name: "a Deployment, and kinds whose look-up fails",
            settings: with("spread", "namespace"),
            selector: web(),
            kinds: Some(&["apps/v1/Deployment", "example.org/v1/Rollout", "example.org/v1/Node"]),
            used: None,
        },
        Case {
            name: "two labels",
            settings: with("spread", "namespace"),
            selector: json!({"app": "web", "tier": "front"}),
            kinds: Some(&["apps/v1/Deployment", "example.org/v1/Rollout", "example.org/v1/Node"]),
            used: None,
        },
        Case {
            name: "one of two labels",
            settings: with("spread", "namespace"),
            selector: json!({"app": "web", "tier": "back"}),
            kinds: Some(&["example.org/v1/Rollout", "example.org/v1/Node"]),
            used: None,
        },
        Case {
            name: "look-ups of the cluster",
            settings: with("spread", "cluster"),
            selector: web(),
            kinds: None,
            used: None,
        },
        Case {
            name: "no selector",
            settings: with("spread", "namespace"),
            selector: json!({}),
            kinds: None,
            used: None,
        },
        Case {
            name: "lowest: the address that the Service shares counts, and short spans don't",
            settings: with("lowest", "cluster"),
            selector: web(),
            kinds: None,
            used: Some(&["10.0.0.1-10.0.0.19", "10.0.0.21-10.0.0.30"]),
        },
    ];
    for Case { name, settings, selector, kinds, used } in cases {
        let mut snapshot = snapshot(&objects);
        snapshot.remove_api("example.org/v1", "Rollout");
        let object = json!({"kind": "Service", "spec": {"selector": selector}});
        let calls = SnapshotCalls::new(Arc::new(RwLock::new(snapshot))).for_object(&object);
        let calls = calls.prefetching(&Settings::from_value(&settings).unwrap(), &ServiceKey::new("shop", "web"));
        let expected = json!({"workloadKinds": kinds, "used": used});
        assert_eq!(calls.prefetched().to_value(), expected, "{name}");
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
