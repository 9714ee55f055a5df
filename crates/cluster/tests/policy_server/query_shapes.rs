//! policy-server keeps a watch forever for each distinct query, so the number of distinct queries must be small.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock, RwLock};

use clusterip_cluster::lookups::complete_objects::CompleteObjects;
use clusterip_cluster::policy::host_calls::HostCall;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::support::{create, evaluate, snapshot};

const TEMPLATE: &str = "spec.template.metadata.labels spec.template.spec.affinity.nodeAffinity \
    spec.template.spec.nodeSelector spec.template.spec.os spec.template.spec.runtimeClassName";
const JOB_TEMPLATE: &str = "spec.jobTemplate.spec.template.metadata.labels \
    spec.jobTemplate.spec.template.spec.affinity.nodeAffinity spec.jobTemplate.spec.template.spec.nodeSelector \
    spec.jobTemplate.spec.template.spec.os spec.jobTemplate.spec.template.spec.runtimeClassName";
const POD: &str = "spec.affinity.nodeAffinity spec.nodeName spec.nodeSelector spec.os spec.runtimeClassName";

/// Every list that the policy requests, with its masks. None has a selector.
const WORKLOAD_LISTS: [(&str, &str); 8] = [
    ("apps/v1/DaemonSet", TEMPLATE),
    ("apps/v1/Deployment", TEMPLATE),
    ("apps/v1/ReplicaSet", TEMPLATE),
    ("apps/v1/StatefulSet", TEMPLATE),
    ("batch/v1/CronJob", JOB_TEMPLATE),
    ("batch/v1/Job", TEMPLATE),
    ("v1/Pod", POD),
    ("v1/ReplicationController", TEMPLATE),
];

/// Every single object that it requests, with any name. The last one bypasses all caches.
const GETS: [&str; 4] = [
    "get networking.k8s.io/v1/IPAddress, not from the cache: metadata",
    "get node.k8s.io/v1/RuntimeClass: scheduling.nodeSelector",
    "get v1/Namespace: metadata",
    "get v1/Node: metadata",
];

/// A query without the name of a single object.
fn shape(call: &HostCall) -> String {
    let masks = |masks: &Option<BTreeSet<String>>| match masks {
        Some(masks) => masks.iter().map(String::as_str).collect::<Vec<_>>().join(" "),
        None => "everything".to_owned(),
    };
    let selectors = |label: &Option<String>, field: &Option<String>| match (label, field) {
        (None, None) => String::new(),
        selectors => format!(", selecting {selectors:?}"),
    };
    match call {
        HostCall::ListAll { api_version, kind, label_selector, field_selector, field_masks } => {
            let selectors = selectors(label_selector, field_selector);
            format!("list {api_version}/{kind}{selectors}: {}", masks(field_masks))
        }
        HostCall::ListNamespace { api_version, kind, namespace, label_selector, field_selector, field_masks } => {
            let selectors = selectors(label_selector, field_selector);
            format!("list {api_version}/{kind} in {namespace}{selectors}: {}", masks(field_masks))
        }
        HostCall::Get { api_version, kind, namespace, disable_cache, field_masks, .. } => {
            let scope = namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
            let cache = if *disable_cache { ", not from the cache" } else { "" };
            format!("get {api_version}/{kind}{scope}{cache}: {}", masks(field_masks))
        }
    }
}

/// All shapes that may occur; workloads are listed in `namespace`, or in the whole cluster.
fn allowed(namespace: Option<&str>) -> BTreeSet<String> {
    let scope = namespace.map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    let lists = WORKLOAD_LISTS.iter().map(|(kind, masks)| format!("list {kind}{scope}: {masks}"));
    let services = ["list v1/Service: spec.clusterIP spec.clusterIPs spec.type".to_owned()];
    lists.chain(services).chain(GETS.map(str::to_owned)).collect()
}

const NAMESPACES: [&str; 4] = ["shop", "back-office", "team-a", "kube-system"];
const NAMES: [&str; 4] = ["web", "db", "jobs", "cache"];

/// A cluster in which every look-up is needed for some request: workloads of every kind and name in each namespace, on
/// Nodes and with RuntimeClasses that have the deciding labels, that lack them, or that do not exist.
static CLUSTER: LazyLock<Arc<RwLock<CompleteObjects>>> = LazyLock::new(|| {
    let mut objects = Vec::new();
    let kinds = WORKLOAD_LISTS.map(|(kind, _)| kind.rsplit_once('/').unwrap());
    for (number, namespace) in NAMESPACES.into_iter().enumerate() {
        objects.push(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": namespace, "labels": {"team": if number % 2 == 0 { "a" } else { "b" }},
        }}));
        for (index, (api_version, kind)) in kinds.into_iter().enumerate() {
            for (place, name) in NAMES.into_iter().enumerate() {
                // Every name belongs to the workloads of only a few kinds, so that the search continues.
                if (index + place + number) % 4 != 0 {
                    continue;
                }
                let labels = json!({"app": name});
                let class = ["windows-2022", "gvisor", "gone"][place % 3];
                let node = ["win-1", "linux-1", "gone"][place % 3];
                let spec = match (index + place) % 3 {
                    0 => json!({"nodeSelector": {"kubernetes.io/os": "windows"}}),
                    1 => json!({"runtimeClassName": class}),
                    _ => json!({"nodeName": node}),
                };
                let template = json!({"metadata": {"labels": labels}, "spec": spec});
                let spec = match kind {
                    "Pod" => spec,
                    "CronJob" => json!({"jobTemplate": {"spec": {"template": template}}}),
                    _ => json!({"template": template}),
                };
                objects.push(json!({"apiVersion": api_version, "kind": kind, "spec": spec, "metadata": {
                    "name": format!("{name}-{kind}").to_lowercase(), "namespace": namespace, "labels": labels,
                }}));
            }
        }
    }
    let nodes = [("win-1", json!({"kubernetes.io/os": "windows"})), ("linux-1", json!({}))];
    objects.extend(nodes.map(
        |(name, labels)| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}),
    ));
    let classes = [("windows-2022", json!({"nodeSelector": {"kubernetes.io/os": "windows"}})), ("gvisor", json!({}))];
    objects.extend(classes.map(|(name, scheduling)| {
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "scheduling": scheduling})
    }));
    snapshot(objects)
});

/// Any text; half of the time one with a meaning in the cluster.
fn text(known: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![select(known).prop_map(str::to_owned), "[a-z]([a-z0-9-]{0,20}[a-z0-9])?", "\\PC{0,12}"]
}

fn labels() -> impl Strategy<Value = Value> {
    let key = text(&["app", "team", "public"]);
    let value = text(&["web", "db", "jobs", "cache", "a"]);
    proptest::collection::btree_map(key, value, 0..3).prop_map(|labels| json!(labels))
}

fn annotations() -> impl Strategy<Value = Value> {
    let key = text(&["clusterip-policy/os", "clusterip-policy/pool", "clusterip-policy/moving"]);
    let value = text(&["windows", "linux", "team", "rest", "{\"from\":[\"10.0.2.9\"]}"]);
    prop_oneof![
        3 => Just(json!({})),
        1 => proptest::collection::btree_map(key, value, 0..3).prop_map(|annotations| json!(annotations)),
    ]
}

fn spec() -> impl Strategy<Value = Value> {
    let selector = prop_oneof![
        3 => select(&NAMES[..]).prop_map(|name| json!({"app": name})),
        1 => labels(),
        1 => Just(Value::Null),
    ];
    let address = prop_oneof![
        4 => Just(Value::Null),
        2 => select(&["10.0.1.9", "10.0.2.9", "fd00::9", "10.9.9.9", "None", "", "no address"][..]).prop_map(Value::from),
    ];
    let kind = select(&["ClusterIP", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"][..]);
    let families = subsequence(vec!["IPv4", "IPv6"], 0..=2).prop_shuffle();
    let policy = select(&["SingleStack", "SingleStack", "PreferDualStack", "RequireDualStack"][..]);
    (selector, address, kind, families, policy).prop_map(|(selector, address, kind, families, policy)| {
        let mut spec = json!({"type": kind, "ipFamilyPolicy": policy, "ports": [{"port": 80}]});
        for (key, value) in [("selector", selector), ("clusterIP", address)] {
            if !value.is_null() {
                spec[key] = value;
            }
        }
        if !families.is_empty() {
            spec["ipFamilies"] = json!(families);
        }
        spec
    })
}

fn service() -> impl Strategy<Value = Value> {
    let metadata = (text(&NAMES), text(&NAMESPACES), labels(), annotations());
    (metadata, spec()).prop_map(|((name, namespace, labels, annotations), spec)| {
        let metadata = json!({"name": name, "namespace": namespace, "labels": labels, "annotations": annotations});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    })
}

fn request() -> impl Strategy<Value = Value> {
    let update = prop_oneof![4 => Just(None), 1 => spec().prop_map(Some)];
    (service(), update, any::<u64>(), text(&["alice"]), any::<bool>()).prop_map(
        |(object, old, uid, user, generated)| {
            let mut request = create(&object);
            request["uid"] = uid.to_string().into();
            request["userInfo"]["username"] = user.into();
            if let Some(spec) = old {
                request["operation"] = "UPDATE".into();
                request["oldObject"] = object.clone();
                request["oldObject"]["spec"] = spec;
            } else if generated {
                request["name"] = "".into();
                request["object"]["metadata"]["generateName"] = request["object"]["metadata"]["name"].take();
            }
            request
        },
    )
}

fn settings(order: &str, lookups: &str) -> Value {
    json!({"services": {
        "order": order,
        "explicit": "deny",
        "evidence": {"lookups": lookups},
        "serviceCIDRs": ["10.0.0.0/16", "fd00::/108"],
        "pools": [
            {"name": "team", "cidrs": ["10.0.1.0/24", "fd00::1:0/112"], "match": {
                "namespaceSelector": {"matchLabels": {"team": "b"}}, "serviceSelector": {"matchLabels": {"public": "a"}},
            }},
            {"name": "windows", "cidrs": ["10.0.2.0/24", "fd00::2:0/112"], "match": {"os": "windows"}},
            {"name": "zone", "cidrs": ["10.0.3.0/24"], "match": {"nodeLabels": {"zone": "east"}}},
            {"name": "rest", "cidrs": ["10.0.4.0/24"]},
        ],
    }})
}

#[test]
fn query_shapes_depend_only_on_the_namespace() {
    for (order, lookups) in
        [("spread", "cluster"), ("lowest", "cluster"), ("spread", "namespace"), ("lowest", "namespace")]
    {
        let settings = settings(order, lookups);
        let of_shop = RefCell::new(BTreeSet::new());
        let mut runner = TestRunner::new_with_rng(
            Config { cases: 800, failure_persistence: None, ..Config::default() },
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let outcome = runner.run(&request(), |request| {
            let (_, exchanges) = evaluate(&request, &settings, &CLUSTER);
            let shapes: BTreeSet<String> = exchanges.iter().map(|exchange| shape(&exchange.call)).collect();
            let namespace = request["namespace"].as_str().unwrap();
            let allowed = allowed((lookups == "namespace").then_some(namespace));
            let others: Vec<&String> = shapes.difference(&allowed).collect();
            prop_assert!(others.is_empty(), "{others:#?}");
            if namespace == "shop" {
                of_shop.borrow_mut().extend(shapes);
            }
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("order {order}, look-ups by {lookups}: {error}"));
        // The test would prove nothing if the policy requested nothing.
        let mut expected = allowed((lookups == "namespace").then_some("shop"));
        if order == "spread" {
            expected.remove("list v1/Service: spec.clusterIP spec.clusterIPs spec.type");
        }
        assert_eq!(of_shop.into_inner(), expected, "order {order}, look-ups by {lookups}");
    }
}

/// A Node with or without blocks, new or not, of a pool or of none.
fn node_request() -> impl Strategy<Value = Value> {
    let block = select(&["10.0.0.0/24", "10.1.7.0/24", "192.168.0.0/24", "fd00::/64", "::/0", "no block", ""][..]);
    let blocks = || proptest::collection::vec(block.clone(), 0..3);
    let old = prop_oneof![1 => Just(None), 1 => blocks().prop_map(Some)];
    let os = text(&["windows", "linux", "beos"]);
    (text(&["w1", "w2"]), os, labels(), blocks(), old).prop_map(|(name, os, mut labels, blocks, old)| {
        labels["kubernetes.io/os"] = os.into();
        let node = |blocks: &[&str]| {
            let spec = json!({"podCIDR": blocks.first(), "podCIDRs": blocks});
            let metadata = json!({"name": name, "labels": labels});
            json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
        };
        let mut request = create(&node(&blocks));
        request["kind"]["kind"] = "Node".into();
        request["resource"]["resource"] = "nodes".into();
        if let Some(old) = old {
            request["operation"] = "UPDATE".into();
            request["oldObject"] = node(&old);
        }
        request
    })
}

#[test]
fn nodes_are_always_listed_with_the_same_query() {
    let nodes = [("w1", "10.0.0.0/24"), ("w2", "10.1.7.0/24")];
    let cluster = snapshot(nodes.map(|(name, block)| {
        let spec = json!({"podCIDR": block, "podCIDRs": [block]});
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})
    }));
    for explicit in ["allow", "warn", "deny"] {
        let settings = json!({"nodes": {"explicit": explicit, "pools": [
            {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
            {"name": "linux", "cidrs": ["10.0.0.0/16", "fd00::/48"], "match": {"nodeLabels": {"kubernetes.io/os": "linux"}}},
        ]}});
        let seen = RefCell::new(BTreeSet::new());
        let mut runner = TestRunner::new_with_rng(
            Config { cases: 300, failure_persistence: None, ..Config::default() },
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let outcome = runner.run(&node_request(), |request| {
            let (_, exchanges) = evaluate(&request, &settings, &cluster);
            prop_assert!(exchanges.len() <= 1, "{exchanges:#?}");
            seen.borrow_mut().extend(exchanges.iter().map(|exchange| shape(&exchange.call)));
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{explicit}: {error}"));
        let expected: &[&str] = if explicit == "allow" { &[] } else { &["list v1/Node: spec.podCIDR spec.podCIDRs"] };
        assert_eq!(seen.into_inner().iter().map(String::as_str).collect::<Vec<_>>(), expected, "{explicit}");
    }
}

/// A Service that claims addresses in some way, and one that has addresses.
fn claiming() -> impl Strategy<Value = Value> {
    let address = || text(&["10.0.9.10", "10.0.9.20", "10.0.8.7", "fd00::9:20", "192.0.2.1", "10.0.9.10,fd00::9:20"]);
    let key = text(&[
        "clusterip-policy/external-address",
        "clusterip-policy/external-addresses",
        "metallb.io/loadBalancerIPs",
        "lbipam.cilium.io/ips",
    ]);
    let annotations = proptest::collection::btree_map(key, address(), 0..3);
    let class = proptest::option::of(select(vec!["clusterip-policy/external", "example.com/other"]));
    let spec = (class, address(), proptest::collection::vec(address(), 0..2)).prop_map(|(class, ip, ips)| {
        json!({"type": "LoadBalancer", "loadBalancerClass": class, "clusterIP": "10.96.0.7", "loadBalancerIP": ip, "externalIPs": ips})
    });
    (select(&NAMESPACES[..]), annotations, spec).prop_map(|(namespace, annotations, spec)| {
        let metadata = json!({"name": "web", "namespace": namespace, "annotations": annotations});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    })
}

#[test]
fn external_addresses_are_always_listed_with_the_same_query() {
    let settings = json!({"external": {"pools": [
        {"name": "edge", "cidrs": ["10.0.9.0/24", "fd00::9:0/120"], "match": {"namespaces": ["shop", "team-a"]}},
        {"name": "team", "cidrs": ["10.0.8.0/24"], "match": {"namespaceSelector": {"matchLabels": {"team": "a"}}}},
    ]}});
    let seen = RefCell::new(BTreeSet::new());
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 300, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let outcome = runner.run(&claiming(), |object| {
        let (_, exchanges) = evaluate(&create(&object), &settings, &CLUSTER);
        let shapes: Vec<String> = exchanges.iter().map(|exchange| shape(&exchange.call)).collect();
        let lists = shapes.iter().filter(|shape| shape.starts_with("list")).count();
        prop_assert!(lists <= 1 && shapes.len() <= 2, "{shapes:?}");
        seen.borrow_mut().extend(shapes);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let expected = [
        "get v1/Namespace: metadata",
        "list v1/Service: spec.externalIPs spec.loadBalancerIP status.loadBalancer.ingress",
    ];
    assert_eq!(seen.into_inner().iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
