//! A changed snapshot is equal to one that is built from the remaining objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::RwLock;

use clusterip_cluster::lookups::snapshot::{SERVICE_NAME_LABEL, Shared, Snapshot};
use clusterip_cluster::lookups::stored_cluster::{StoredCluster, Unused};
use clusterip_cluster::object::Packed;
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::Cluster;
use clusterip_core::settings::Lookups;
use clusterip_core::workload::WorkloadKind;
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
enum Op {
    Insert(Value),
    Remove(&'static str, &'static str, String, String),
}

const NAMESPACES: [&str; 2] = ["bank", "shop"];
const NAMES: [&str; 3] = ["a", "b", "c"];

fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map("[kl]", "[xy]", 0..3)
}

fn object() -> impl Strategy<Value = Value> {
    let id = (proptest::sample::select(&NAMESPACES[..]), proptest::sample::select(&NAMES[..]));
    let service = (id.clone(), labels(), 1_u8..6).prop_map(|((namespace, name), selector, last)| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": format!("10.0.0.{last}"), "selector": selector},
        })
    });
    let deployment = (id.clone(), labels()).prop_map(|((namespace, name), labels)| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"template": {"metadata": {"labels": labels}}},
        })
    });
    let slice = (id, proptest::sample::select(&NAMES[..])).prop_map(|((namespace, name), service)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": namespace, "name": name, "labels": {SERVICE_NAME_LABEL: service}},
        })
    });
    let node = (proptest::sample::select(&NAMES[..]), 0_u8..4, 24_u8..=26).prop_map(|(name, third, length)| {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
            "spec": {"podCIDR": format!("10.1.{third}.0/{length}")},
        })
    });
    prop_oneof![2 => service, 2 => deployment, 1 => slice, 1 => node]
}

fn op() -> impl Strategy<Value = Op> {
    let remove = object().prop_map(|object| {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = match text("/kind").as_str() {
            "Service" => ("v1", "Service"),
            "Node" => ("v1", "Node"),
            "Deployment" => ("apps/v1", "Deployment"),
            _ => ("discovery.k8s.io/v1", "EndpointSlice"),
        };
        Op::Remove(api_version, kind, text("/metadata/namespace"), text("/metadata/name"))
    });
    prop_oneof![3 => object().prop_map(Op::Insert), 1 => remove]
}

/// Every possible look-up, with its answer.
fn asked(snapshot: Snapshot) -> Vec<String> {
    let mut answers = Vec::new();
    let mut addresses: Vec<IpAddr> = snapshot.addresses().collect();
    addresses.sort_unstable();
    for address in addresses {
        answers.push(format!("{address}: {:?}", snapshot.owners(address).collect::<Vec<_>>()));
    }
    let sets: Vec<Labels> = ["x", "y"]
        .iter()
        .flat_map(|k| ["x", "y"].map(|l| Labels::from([("k".into(), (*k).into()), ("l".into(), l.into())])))
        .chain([Labels::new(), Labels::from([("k".into(), "x".into())])])
        .collect();
    for namespace in NAMESPACES {
        for labels in &sets {
            answers.push(format!("{namespace} {labels:?}: {:?}", snapshot.services_selecting(namespace, labels)));
        }
        for name in NAMES {
            let label = (SERVICE_NAME_LABEL.to_owned(), name.to_owned());
            let slices = snapshot.labelled("discovery.k8s.io/v1", "EndpointSlice", namespace, &label);
            answers.push(format!("{namespace} {name}: {slices:?}"));
        }
    }
    for (api_version, kind) in [("v1", "Service"), ("apps/v1", "Deployment")] {
        answers.push(format!("{kind}: {:?}", snapshot.names(api_version, kind, None)));
    }
    let snapshot = RwLock::new(snapshot);
    let deployments = WorkloadKind::parse("Deployment").unwrap();
    for name in ["a", "b"] {
        let service = json!({"metadata": {"namespace": "shop", "name": name}});
        let unused = Unused(&snapshot);
        let cluster = StoredCluster::new(&snapshot, &service, &unused);
        answers.push(format!("used by others than {name}: {:?}", cluster.known_used()));
        for third in 0..4 {
            let (block, mut found) = (format!("10.1.{third}.0/25").parse().unwrap(), BTreeSet::new());
            let mut visit = |name: &str, block: IpNet| {
                found.insert((name.to_owned(), block));
            };
            cluster.node_blocks(&[block], &mut visit).unwrap();
            answers.push(format!("{block}: {found:?}"));
        }
        for selector in sets.iter().filter(|selector| !selector.is_empty()) {
            for namespace in NAMESPACES {
                let workloads = cluster.workloads(&deployments, namespace, Lookups::Namespace, selector);
                answers.push(format!("{namespace} {selector:?}: {workloads:?}"));
            }
        }
    }
    answers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn changed_snapshot_equals_a_new_one(ops in proptest::collection::vec(op(), 0..40)) {
        let (changed, mut left) = (RwLock::new(Snapshot::default()), BTreeMap::new());
        for op in ops {
            match op {
                Op::Insert(object) => {
                    let text =
                        |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
                    let id = (text("/kind"), text("/metadata/namespace"), text("/metadata/name"));
                    let expected = match left.insert(id, object.clone()) {
                        Some(replaced) if replaced == object => Shared::Same,
                        replaced => Shared::Changed(replaced),
                    };
                    prop_assert_eq!(Snapshot::share_in(&changed, &object, Packed::new(&object)), expected);
                }
                Op::Remove(api_version, kind, namespace, name) => {
                    let removed = changed.write().unwrap().remove(api_version, kind, &namespace, &name);
                    prop_assert_eq!(removed, left.remove(&(kind.to_owned(), namespace, name)));
                }
            }
        }
        let mut made = Snapshot::default();
        left.into_values().for_each(|object| made.insert(object));
        prop_assert_eq!(asked(changed.into_inner().unwrap()), asked(made));
    }
}

/// The author of a Service can write this annotation, so it must not reserve any address.
#[test]
fn forged_move_annotation_reserves_no_address() {
    let forged: Vec<String> = (0..=255).map(|last| format!("10.0.7.{last}")).collect();
    let service = |moving: &Value| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": "web", "annotations": {"clusterip-policy/moving": moving.to_string()}},
            "spec": {"clusterIP": "10.0.0.1"},
        })
    };
    let own: Vec<IpAddr> = vec!["10.0.0.1".parse().unwrap()];
    for moving in [
        json!({"from": ["10.0.7.1"], "to": ["10.0.7.2"]}),
        json!({"phase": "placed", "way": "externalName", "from": ["10.0.7.1"], "to": ["10.0.7.2"]}),
        json!({"from": forged, "to": forged}),
    ] {
        let mut snapshot = Snapshot::default();
        snapshot.insert(service(&moving));
        assert_eq!(snapshot.addresses().collect::<Vec<_>>(), own, "{moving}");
        assert!(!snapshot.has_ip_address("10.0.7.1".parse().unwrap()), "{moving}");
    }
}

#[test]
fn revision_changes_with_the_objects_that_decide_the_pool_of_a_service() {
    struct Case {
        api_version: &'static str,
        kind: &'static str,
        changes: bool,
    }
    let cases = [
        Case { api_version: "v1", kind: "Service", changes: false },
        Case { api_version: "serving.knative.dev/v1", kind: "Service", changes: true },
        Case { api_version: "v1", kind: "Pod", changes: true },
        Case { api_version: "apps/v1", kind: "Deployment", changes: true },
        Case { api_version: "discovery.k8s.io/v1", kind: "EndpointSlice", changes: false },
        Case { api_version: "networking.k8s.io/v1", kind: "IPAddress", changes: false },
    ];
    for Case { api_version, kind, changes } in cases {
        let mut snapshot = Snapshot::default();
        let before = snapshot.revision("shop");
        let metadata = json!({"name": "web", "namespace": "shop"});
        snapshot.insert(json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}));
        assert_eq!(snapshot.revision("shop") != before, changes, "{api_version} {kind}");
    }
}

/// A tenant may have any number of workloads, with any number of labels and of any kind.
#[test]
fn workloads_for_one_decision_are_bounded_for_all_kinds_together() {
    let mut snapshot = Snapshot::default();
    for kind in ["Deployment", "StatefulSet"] {
        for number in 0..200 {
            let annotations = json!({"note": "x".repeat(1_000)});
            let template = json!({"metadata": {"labels": {"app": "web"}, "annotations": annotations}});
            let metadata = json!({"namespace": "shop", "name": format!("web-{number:03}")});
            snapshot.insert(
                json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {"template": template}}),
            );
        }
    }
    let snapshot = RwLock::new(snapshot);
    let (service, unused) = (json!({"metadata": {"namespace": "shop", "name": "web"}}), Unused(&snapshot));
    let cluster = StoredCluster::new(&snapshot, &service, &unused);
    let selector = Labels::from([("app".to_owned(), "web".to_owned())]);
    let read = |kind: &str| {
        let kind = WorkloadKind::parse(kind).unwrap();
        let selected = cluster.workloads(&kind, "shop", Lookups::Namespace, &selector).unwrap();
        (selected.workloads.len(), selected.is_cut)
    };
    let (deployments, stateful_sets) = (read("Deployment"), read("StatefulSet"));
    assert_eq!(deployments, (200, false));
    assert!(stateful_sets.0 < 60 && stateful_sets.1, "{stateful_sets:?}");
    assert_eq!(read("Pod"), (0, false));
}
