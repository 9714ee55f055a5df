//! Random requests, settings and clusters, in which few names and addresses occur, so that objects meet.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

fn text(values: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(values).prop_map(str::to_owned)
}

pub const NAMESPACES: &[&str] = &["shop", "team-a", "kube-system"];
const NAMES: &[&str] = &["web", "db", "jobs"];
const OS: &[&str] = &["windows", "linux", "Linux", "beos"];
const ADDRESSES: &[&str] = &[
    "10.0.1.1",
    "10.0.1.2",
    "10.0.1.5",
    "10.0.2.1",
    "10.0.2.3",
    "10.0.9.9",
    "fd00::1:2",
    "fd00::1:3",
    "None",
    "",
    "no",
];
const EXTERNAL: &[&str] = &["192.0.2.1", "192.0.2.2", "192.0.2.9", "2001:db8::1", "192.0.2.1,2001:db8::1", "x"];
const BLOCKS: &[&str] = &["10.1.0.0/24", "10.1.1.0/24", "10.1.1.128/25", "10.2.0.0/24", "fd01::/64", "no block"];

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    let key = text(&["app", "team", "kubernetes.io/os", "zone"]);
    proptest::collection::btree_map(key, text(&["web", "db", "a", "windows", "linux", "east"]), 0..3)
}

/// The labels of Pods, and the selectors of Services, which often select them.
fn pod_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    let app = text(&["web", "db"]).prop_map(|app| BTreeMap::from([("app".to_owned(), app)]));
    prop_oneof![3 => app, 1 => labels()]
}

fn annotations() -> impl Strategy<Value = BTreeMap<String, String>> {
    let key = text(&[
        "clusterip-policy/os",
        "clusterip-policy/pool",
        "clusterip-policy/external-pool",
        "clusterip-policy/external-addresses",
        "metallb.io/loadBalancerIPs",
        "scheduler.alpha.kubernetes.io/node-selector",
        "note",
    ]);
    let value =
        text(&["windows", "linux", "rest", "edge", "192.0.2.2", "kubernetes.io/os=windows", "\u{e9}\u{2028}\"\\"]);
    prop_oneof![3 => Just(BTreeMap::new()), 1 => proptest::collection::btree_map(key, value, 0..3)]
}

fn metadata(namespaced: bool) -> impl Strategy<Value = Value> {
    (text(NAMES), text(NAMESPACES), labels(), annotations()).prop_map(move |(name, namespace, labels, annotations)| {
        let mut metadata = json!({"name": name, "labels": labels, "annotations": annotations});
        if namespaced {
            metadata["namespace"] = namespace.into();
        }
        metadata
    })
}

/// An object with the fields whose values are given.
fn fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn service() -> impl Strategy<Value = Value> {
    let kind = text(&["ClusterIP", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]);
    let addresses = weighted(0.4, vec(text(ADDRESSES), 1..3));
    let families = weighted(0.3, subsequence(vec!["IPv4", "IPv6"], 1..=2).prop_shuffle());
    let policy = of(text(&["SingleStack", "PreferDualStack", "RequireDualStack"]));
    let external = (weighted(0.3, vec(text(EXTERNAL), 1..3)), weighted(0.3, text(EXTERNAL)));
    let class = weighted(0.6, text(&["clusterip-policy/external", "example.com/other"]));
    let owned = weighted(0.2, text(&["f:clusterIP", "f:clusterIPs", "f:ports"]));
    let spec = (of(pod_labels()), addresses, kind, families, policy, external, class, owned);
    (metadata(true), spec).prop_map(|(mut metadata, spec)| {
        let (selector, addresses, kind, families, policy, (external, load_balancer), class, owned) = spec;
        if let Some(owned) = owned {
            metadata["managedFields"] = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {owned: {}}}}]);
        }
        let spec = fields([
            ("type", Some(kind.into())),
            ("selector", selector.map(|labels| json!(labels))),
            ("clusterIP", addresses.as_ref().map(|addresses| addresses[0].clone().into())),
            ("clusterIPs", addresses.filter(|addresses| addresses.len() > 1).map(|addresses| json!(addresses))),
            ("ipFamilies", families.map(|families| json!(families))),
            ("ipFamilyPolicy", policy.map(Value::from)),
            ("externalIPs", external.map(|addresses| json!(addresses))),
            ("loadBalancerIP", load_balancer.map(Value::from)),
            ("loadBalancerClass", class.map(Value::from)),
            ("ports", Some(json!([{"port": 80}]))),
        ]);
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    })
}

fn node() -> impl Strategy<Value = Value> {
    (metadata(false), vec(text(BLOCKS), 0..3)).prop_map(|(metadata, blocks)| {
        let spec = if blocks.is_empty() { json!({}) } else { json!({"podCIDR": blocks[0], "podCIDRs": blocks}) };
        json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec})
    })
}

fn workload() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![
        3 => select(&[("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("batch/v1", "CronJob")][..]),
        2 => Just(("v1", "Pod")),
    ];
    let affinity = text(OS).prop_map(|os| {
        let term = json!({"matchExpressions": [{"key": "kubernetes.io/os", "operator": "In", "values": [os]}]});
        let required = json!({"nodeSelectorTerms": [term]});
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
    });
    let pod_spec = prop_oneof![
        1 => Just(json!({})),
        1 => text(OS).prop_map(|os| json!({"os": {"name": os}})),
        1 => text(OS).prop_map(|os| json!({"nodeSelector": {"kubernetes.io/os": os, "zone": "east"}})),
        2 => text(NAMES).prop_map(|name| json!({"runtimeClassName": name})),
        3 => text(NAMES).prop_map(|name| json!({"nodeName": name})),
        1 => affinity,
        1 => Just(json!({"nodeSelector": 5})),
    ];
    (kind, metadata(true), pod_labels(), pod_spec).prop_map(|((api_version, kind), mut metadata, labels, pod_spec)| {
        let template = json!({"metadata": {"labels": labels}, "spec": pod_spec});
        let spec = match kind {
            "Pod" => {
                metadata["labels"] = json!(labels);
                pod_spec
            }
            "CronJob" => json!({"jobTemplate": {"spec": {"template": template}}}),
            _ => json!({"template": template}),
        };
        json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec})
    })
}

fn cluster_object() -> impl Strategy<Value = Value> {
    let namespace = (metadata(false), text(NAMESPACES)).prop_map(|(mut metadata, name)| {
        metadata["name"] = name.into();
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    });
    let class = (metadata(false), of(labels())).prop_map(|(metadata, selector)| {
        let scheduling = json!({"nodeSelector": selector});
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "scheduling": scheduling})
    });
    let address = text(ADDRESSES).prop_map(
        |name| json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": name}}),
    );
    prop_oneof![4 => service(), 6 => workload(), 2 => node(), 1 => namespace, 1 => class, 1 => address]
}

/// Random objects, a kind that may not be read, and a kind that the cluster does not have.
pub fn cluster() -> impl Strategy<Value = (Vec<Value>, Option<&'static str>, Option<&'static str>)> {
    let kinds = &["Service", "Deployment", "Pod", "Namespace", "Node", "RuntimeClass", "IPAddress"][..];
    let cluster = (vec(cluster_object(), 0..20), weighted(0.15, select(kinds)), weighted(0.2, Just("IPAddress")));
    // No object has a kind that the cluster lacks.
    cluster.prop_map(|(mut objects, forbidden, absent)| {
        objects.retain(|object| absent.is_none_or(|absent| object["kind"] != absent));
        (objects, forbidden, absent)
    })
}

/// A match by the labels of nodes.
fn by_nodes() -> BoxedStrategy<Value> {
    let os = text(OS).prop_map(|os| json!({"os": os}));
    prop_oneof![3 => os, 1 => Just(json!({"nodeLabels": {"zone": "east"}}))].boxed()
}

/// A match by the namespace or the labels of a Service.
fn by_service() -> BoxedStrategy<Value> {
    prop_oneof![
        subsequence(NAMESPACES.to_vec(), 1..3).prop_map(|namespaces| json!({"namespaces": namespaces})),
        labels().prop_map(|labels| json!({"namespaceSelector": {"matchLabels": labels}})),
        labels().prop_map(|labels| json!({"serviceSelector": {"matchLabels": labels}})),
    ]
    .boxed()
}

const SERVICE_POOLS: &[(&str, &[&str])] = &[
    ("windows", &["10.0.1.0/29", "fd00::1:0/125"]),
    ("linux", &["10.0.2.0/30"]),
    ("rest", &["10.0.3.0/24", "fd00::3:0/120"]),
];

/// Pools with these names and ranges, in a random order, each with a random match; the last one often without.
fn pools(
    all: &'static [(&'static str, &'static [&'static str])],
    matching: fn() -> BoxedStrategy<Value>,
) -> impl Strategy<Value = Vec<Value>> {
    let pool = move |(name, cidrs): (&'static str, &'static [&'static str])| {
        let cidrs = subsequence(cidrs.to_vec(), 1..=cidrs.len());
        (cidrs, matching()).prop_map(move |(cidrs, matching)| json!({"name": name, "cidrs": cidrs, "match": matching}))
    };
    let some = subsequence(all.to_vec(), 1..=all.len()).prop_shuffle();
    let pools = some.prop_flat_map(move |some| some.into_iter().map(pool).collect::<Vec<_>>());
    (pools, weighted(0.7, Just(()))).prop_map(|(mut pools, takes_the_rest)| {
        if let (Some(last), Some(())) = (pools.last_mut(), takes_the_rest) {
            last["match"] = json!({});
        }
        pools
    })
}

pub fn settings() -> impl Strategy<Value = Value> {
    let withheld = (0..3_u8, any::<bool>(), any::<bool>());
    let any_match = || prop_oneof![by_nodes(), by_service()].boxed();
    let pools_of_services = (pools(SERVICE_POOLS, any_match), withheld).prop_map(|(mut pools, withheld)| {
        let (reserved, exclude, bands) = withheld;
        pools[0]["reserved"] = reserved.into();
        pools[0]["bands"] = bands.into();
        if exclude && pools[0]["cidrs"][0] == "10.0.1.0/29" {
            pools[0]["exclude"] = json!(["10.0.1.2"]);
        }
        pools
    });
    let kinds =
        weighted(0.5, subsequence(vec!["Deployment", "StatefulSet", "CronJob", "Pod", "example.com/v1/Odd"], 1..5));
    let choices = (
        of(text(&["spread", "lowest"])),
        of(text(&["allow", "warn", "deny"])),
        of(text(&["deny", "unmanaged"])),
        of(text(&["cluster", "namespace"])),
        of(text(OS)),
        any::<bool>(),
    );
    let ranges = weighted(0.5, Just(json!(["10.0.0.0/16", "fd00::/108"])));
    let services = (pools_of_services, kinds, choices, ranges).prop_map(|(pools, kinds, choices, ranges)| {
        let (order, explicit, when_full, lookups, os, annotate) = choices;
        let evidence = fields([("kinds", kinds.map(|kinds| json!(kinds))), ("lookups", lookups.map(Value::from))]);
        fields([
            ("pools", Some(pools.into())),
            ("evidence", Some(evidence)),
            ("order", order.map(Value::from)),
            ("explicit", explicit.map(Value::from)),
            ("whenFull", when_full.map(Value::from)),
            ("assumeOS", os.map(Value::from)),
            ("annotateReason", Some(annotate.into())),
            ("serviceCIDRs", ranges),
        ])
    });
    let nodes = pools(&[("a", &["10.1.0.0/22", "fd01::/62"]), ("b", &["10.2.0.0/23"])], by_nodes);
    let nodes = (nodes, of(text(&["allow", "warn", "deny"])))
        .prop_map(|(pools, explicit)| fields([("pools", Some(pools.into())), ("explicit", explicit.map(Value::from))]));
    let external = pools(&[("edge", &["192.0.2.0/30", "2001:db8::/126"]), ("dmz", &["192.0.2.8/30"])], by_service);
    let external = external.prop_map(|pools| json!({"pools": pools}));
    let mistake = weighted(0.05, Just(json!(["10.0.0.0/33"])));
    let sections = (weighted(0.9, services), weighted(0.5, nodes), weighted(0.5, external), mistake);
    sections.prop_map(|(services, nodes, external, mistake)| {
        fields([("services", services), ("nodes", nodes), ("external", external), ("mistake", mistake)])
    })
}

pub fn request() -> impl Strategy<Value = Value> {
    let service = (service(), weighted(0.4, service()), Just("Service"), Just("services"));
    let node = (node(), weighted(0.4, node()), Just("Node"), Just("nodes"));
    let about = prop_oneof![4 => service.boxed(), 1 => node.boxed()];
    (about, any::<u32>(), weighted(0.1, Just(()))).prop_map(|((mut object, old, kind, resource), uid, unnamed)| {
        let mut name = object["metadata"]["name"].clone();
        if unnamed.is_some() && old.is_none() {
            object["metadata"]["generateName"] = object["metadata"]["name"].take();
            name = "".into();
        }
        // An update changes the spec of an object, and keeps its name.
        let old = old.map(|mut old| {
            old["metadata"] = object["metadata"].clone();
            old
        });
        json!({
            "uid": uid.to_string(),
            "kind": {"group": "", "version": "v1", "kind": kind},
            "resource": {"group": "", "version": "v1", "resource": resource},
            "name": name,
            "namespace": object["metadata"]["namespace"],
            "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
            "userInfo": {"username": "alice"},
            "object": object,
            "oldObject": old,
        })
    })
}
