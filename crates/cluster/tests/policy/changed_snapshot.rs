//! A changed snapshot is equal to one that is built from the remaining objects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, RwLock};

use clusterip_cluster::lookups::stored_cluster::StoredCluster;
use clusterip_cluster::snapshot::{
    Insertion, MAX_BYTES, MAX_STEPS, SERVICE_NAME_LABEL, Snapshot, Stored, label_hashes,
};
use clusterip_core::address::Span;
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::Cluster;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Lookups;
use clusterip_core::workload::WorkloadKind;
use ipnet::IpNet;
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
enum Op {
    Insert(Value),
    Remove(Value),
}

/// The API version, the kind, the namespace and the name of an object.
fn id(object: &Value) -> [String; 4] {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    ["/apiVersion", "/kind", "/metadata/namespace", "/metadata/name"].map(text)
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
            "spec": {
                "clusterIP": format!("10.0.0.{last}"), "selector": selector,
                "externalIPs": (1..last).map(|last| format!("10.0.9.{last}")).collect::<Vec<_>>(),
            },
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
    prop_oneof![3 => object().prop_map(Op::Insert), 1 => object().prop_map(Op::Remove)]
}

/// What a snapshot keeps of an object.
fn stored(object: &Value) -> Stored {
    match Snapshot::default().insert(object) {
        Insertion::Changed { after, .. } => after,
        other => panic!("{other:?}"),
    }
}

/// Every possible look-up, with its answer.
fn asked(snapshot: Snapshot) -> Vec<String> {
    let mut answers = Vec::new();
    let mut addresses: Vec<IpAddr> = snapshot.addresses().collect();
    addresses.sort_unstable();
    for address in addresses {
        answers.push(format!("{address}: {:?}", snapshot.owners(address).collect::<Vec<_>>()));
    }
    for (address, service) in snapshot.external_addresses() {
        assert!(snapshot.external_owners(address).any(|owner| owner == service));
        answers.push(format!("{address}: {service}"));
    }
    answers.push(format!("{:?}", snapshot.external_services()));
    let sets: Vec<Labels> = ["x", "y"]
        .iter()
        .flat_map(|k| ["x", "y"].map(|l| Labels::from([("k".into(), (*k).into()), ("l".into(), l.into())])))
        .chain([Labels::new(), Labels::from([("k".into(), "x".into())])])
        .collect();
    for namespace in NAMESPACES {
        for labels in &sets {
            let labels = label_hashes(labels);
            let selecting = snapshot.each_service(Some(namespace)).filter(|service| service.selects(&labels));
            answers.push(format!("{:?}", selecting.map(|service| service.key()).collect::<Vec<_>>()));
        }
        for name in NAMES {
            let slices = snapshot.endpoints_of(&ServiceKey::new(namespace, name));
            answers.push(format!("{namespace} {name}: {slices:?}"));
        }
    }
    for (api_version, kind) in [("v1", "Service"), ("apps/v1", "Deployment")] {
        answers.push(format!("{kind}: {:?}", snapshot.names(api_version, kind)));
    }
    let snapshot = Arc::new(RwLock::new(snapshot));
    let deployments = WorkloadKind::parse("Deployment").unwrap();
    for name in ["a", "b"] {
        let service = json!({"metadata": {"namespace": "shop", "name": name}});
        let cluster = StoredCluster::new(&snapshot, &service);
        let all = Span::from("10.0.0.0/24".parse::<IpNet>().unwrap());
        answers.push(format!("free for {name}: {:?}", cluster.free_addresses(&[all], 200)));
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
                    let expected = match left.insert(id(&object), object.clone()) {
                        Some(replaced) if replaced == object => Insertion::Same,
                        replaced => Insertion::Changed {
                            before: replaced.as_ref().map(stored),
                            after: stored(&object),
                        },
                    };
                    prop_assert_eq!(Snapshot::insert_in(&changed, &object), expected);
                }
                Op::Remove(object) => {
                    let id = id(&object);
                    let [api_version, kind, namespace, name] = &id;
                    let removed = changed.write().unwrap().remove(api_version, kind, namespace, name);
                    let expected = left.remove(&id);
                    prop_assert_eq!(removed, expected.as_ref().map(stored));
                }
            }
        }
        let mut made = Snapshot::default();
        for object in left.into_values() {
            made.insert(&object);
        }
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
        snapshot.insert(&service(&moving));
        assert_eq!(snapshot.addresses().collect::<Vec<_>>(), own, "{moving}");
        assert!(!snapshot.is_used("10.0.7.1".parse().unwrap()), "{moving}");
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
        snapshot.insert(&json!({"apiVersion": api_version, "kind": kind, "metadata": metadata}));
        assert_eq!(snapshot.revision("shop") != before, changes, "{api_version} {kind}");
    }
}

/// The workload of this kind `shop/web-NUMBER`, whose Pods have these labels and this spec.
fn workload(kind: &str, number: usize, labels: &Value, spec: &Value) -> Value {
    let metadata = json!({"namespace": "shop", "name": format!("web-{number:05}")});
    let template = json!({"metadata": {"labels": labels}, "spec": spec});
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {"template": template}})
}

/// For each of these kinds, how many workloads one decision reads about a Service that selects Pods of this app, and
/// whether there are more.
fn read(snapshot: &Arc<RwLock<Snapshot>>, app: &str, kinds: &[&str]) -> Vec<(usize, bool)> {
    let service = json!({"metadata": {"namespace": "shop", "name": "web"}});
    let cluster = StoredCluster::new(snapshot, &service);
    let selector = Labels::from([("app".to_owned(), app.to_owned())]);
    let read = |kind: &&str| {
        let kind = WorkloadKind::parse(kind).unwrap();
        let selected = cluster.workloads(&kind, "shop", Lookups::Namespace, &selector).unwrap();
        (selected.workloads.len(), selected.is_cut || selected.is_incomplete)
    };
    kinds.iter().map(read).collect()
}

/// A tenant may have any number of workloads, with any number of labels and of any kind.
#[test]
fn workloads_for_one_decision_are_bounded_for_all_kinds_together() {
    let mut snapshot = Snapshot::default();
    for kind in ["Deployment", "StatefulSet"] {
        for number in 0..300 {
            snapshot.insert(&workload(kind, number, &json!({"app": "web"}), &json!({})));
        }
    }
    let found = read(&Arc::new(RwLock::new(snapshot)), "web", &["Deployment", "StatefulSet", "Pod"]);
    // Each takes 34 steps.
    assert_eq!(found, [(300, false), (MAX_STEPS / 34 - 300, true), (0, false)]);
}

#[test]
fn workloads_with_much_affinity_take_more_steps() {
    let values: Vec<String> = (0..250).map(|number| format!("v{number}")).collect();
    let term = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]});
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}});
    let spec = json!({"affinity": {"nodeAffinity": required}});
    let mut snapshot = Snapshot::default();
    for number in 0..10 {
        snapshot.insert(&workload("Deployment", number, &json!({"app": "web"}), &spec));
    }
    assert_eq!(read(&Arc::new(RwLock::new(snapshot)), "web", &["Deployment"]), [(1, true)]);
}

/// Workloads with more than 16 labels are looked up for every selector.
#[test]
fn workloads_that_lack_a_label_take_the_steps_of_a_look_up() {
    let mut snapshot = Snapshot::default();
    let labels: serde_json::Map<_, _> = (0..17).map(|number| (format!("l{number}"), json!("x"))).collect();
    for number in 0..500 {
        snapshot.insert(&workload("ReplicaSet", number, &labels.clone().into(), &json!({})));
    }
    snapshot.insert(&workload("Deployment", 0, &json!({"app": "web"}), &json!({})));
    let found = read(&Arc::new(RwLock::new(snapshot)), "web", &["ReplicaSet", "Deployment"]);
    assert_eq!(found, [(0, true), (0, true)]);
}

/// Labels of the maximum length, one of which is `app: web`.
fn many_labels(prefix: &str) -> Value {
    let long = |number: usize| (format!("example.com/{prefix}-{number:040}"), json!("v".repeat(63)));
    (0..62).map(long).chain([("app".to_owned(), json!("web"))]).collect::<serde_json::Map<_, _>>().into()
}

/// 30,800 ReplicaSets without replicas and with 63 labels each took 11 KiB each.
#[test]
fn workload_without_requirements_is_kept_in_less_than_a_kibibyte() {
    let mut snapshot = Snapshot::default();
    let count = 1000;
    for number in 0..count {
        snapshot.insert(&workload("ReplicaSet", number, &many_labels(&number.to_string()), &json!({})));
    }
    let each = snapshot.bytes("shop") / count;
    assert!(each < 768, "{each} bytes");
    assert_eq!(read(&Arc::new(RwLock::new(snapshot)), "web", &["ReplicaSet"]), [(MAX_STEPS / 34, true)]);
}

/// A namespace may have 10,000 Services besides its workloads.
#[test]
fn ordinary_service_is_kept_in_about_a_kibibyte() {
    let mut snapshot = Snapshot::default();
    let count = 1000;
    for number in 0..count {
        let app = json!({"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("shop-{number}")});
        let address = format!("10.0.{}.{}", number / 200, number % 200);
        let port =
            |port: u16| json!({"name": format!("port-{port}"), "port": port, "protocol": "TCP", "targetPort": port});
        snapshot.insert(&json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": format!("web-{number:05}"), "labels": app,
                "uid": "01234567-0123-0123-0123-0123456789ab", "managedFields": [{"manager": "helm"}]},
            "spec": {"type": "LoadBalancer", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "selector": app, "ports": [port(80), port(443), port(8080)]},
        }));
    }
    let each = snapshot.bytes("shop") / count;
    assert!(each < 1100, "{each} bytes");
}

/// A tenant can write any number of objects of a megabyte.
#[test]
fn object_of_a_megabyte_is_kept_in_few_kibibytes() {
    let long = || "x".repeat(1 << 20);
    let thousand = |prefix: &str| -> Value {
        let item = |number: usize| (format!("{prefix}{number}"), json!(format!("{number:01000}")));
        (0..1000).map(item).collect::<serde_json::Map<_, _>>().into()
    };
    let term = |values: Value| json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
    let affinity =
        |when: &str, terms: Value| json!({"affinity": {"nodeAffinity": {(when): {"nodeSelectorTerms": terms}}}});
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let web = json!({"app": "web"});
    let service = |annotations: Value, spec: Value| {
        let metadata = json!({"namespace": "shop", "name": "web", "annotations": annotations});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    };
    let ports =
        json!((0..10_000).map(|port| json!({"name": format!("port-{port:050}"), "port": port})).collect::<Vec<_>>());
    let rows = [
        ("labels of Pods", workload("Deployment", 0, &thousand("a"), &json!({}))),
        ("long labels of Pods", workload("Deployment", 0, &json!({"a": long()}), &json!({}))),
        (
            "too many terms",
            workload("Deployment", 0, &web, &affinity(REQUIRED, json!(vec![term(json!([long()])); 260]))),
        ),
        ("a long value", workload("Deployment", 0, &web, &affinity(REQUIRED, json!([term(json!([long()]))])))),
        (
            "affinity of the wrong shape",
            workload("Rollout", 0, &web, &affinity(REQUIRED, json!([term(json!(long()))]))),
        ),
        ("a long name of a class", workload("Rollout", 0, &web, &json!({"runtimeClassName": long()}))),
        ("an annotation of another program", service(json!({"example.com/note": long()}), json!({}))),
        ("a long name of a pool", service(json!({"clusterip-policy/pool": long()}), json!({}))),
        ("a forged move", service(json!({"clusterip-policy/moving": long()}), json!({}))),
        ("a load balancer IP", service(json!({}), json!({"loadBalancerIP": long()}))),
        ("ports", service(json!({}), json!({"type": "ClusterIP", "ports": ports}))),
        ("ports of a load balancer", service(json!({}), json!({"type": "LoadBalancer", "ports": ports}))),
    ];
    for (name, object) in rows {
        let mut snapshot = Snapshot::default();
        snapshot.insert(&object);
        let bytes = snapshot.bytes("shop");
        assert!(bytes > 0 && bytes < 20 << 10, "{name}: {bytes} bytes are kept");
    }
}

/// A tenant may write any number of addresses, also of Services that are left out.
#[test]
fn external_addresses_of_a_service_that_is_left_out_share_its_key() {
    let mut snapshot = Snapshot::limited_to(MAX_BYTES);
    let object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "type": "ExternalName", "externalName": "x".repeat(MAX_BYTES),
            "externalIPs": ["10.0.9.3", "10.0.9.1"], "loadBalancerIP": "10.0.9.2,10.0.9.4",
        },
    });
    assert_eq!(snapshot.insert(&object), Insertion::LeftOut(None));
    let (own, other) = (ServiceKey::new("shop", "web"), ServiceKey::new("bank", "web"));
    let found: Vec<_> = snapshot.external_addresses().collect();
    assert!(found.iter().all(|(address, key)| **key == own && !snapshot.is_routed_to_other(*address, &own)));
    let routed = found.iter().map(|(address, _)| snapshot.is_routed_to_other(*address, &other));
    assert_eq!(routed.collect::<Vec<_>>(), [true, false, true, false], "kube-proxy ignores a request");
    assert!(found.iter().all(|(_, key)| std::ptr::eq(*key, found[0].1)), "the key is copied for each address");
    assert_eq!(snapshot.external_services(), []);
    snapshot.remove("v1", "Service", "shop", "web");
    assert_eq!(snapshot.external_addresses().count(), 0);
}

#[test]
fn objects_above_the_limit_of_their_namespace_are_left_out() {
    let selector = many_labels("node");
    let spec = |number: usize| json!({"nodeSelector": selector, "runtimeClassName": format!("r{number}")});
    let shared = Arc::new(RwLock::new(Snapshot::limited_to(MAX_BYTES)));
    let mut snapshot = shared.write().unwrap();
    let mut kept = 0;
    let left_out = loop {
        let object = workload("Deployment", kept, &json!({"app": "web"}), &spec(kept));
        match snapshot.insert(&object) {
            Insertion::Changed { before: None, .. } => kept += 1,
            Insertion::LeftOut(None) => break object,
            other => panic!("{other:?}"),
        }
    };
    assert!(snapshot.bytes("shop") > MAX_BYTES - (32 << 10), "{}", snapshot.bytes("shop"));
    let mut of_another = workload("Deployment", 0, &json!({"app": "web"}), &spec(0));
    of_another["metadata"]["namespace"] = "bank".into();
    assert!(matches!(snapshot.insert(&of_another), Insertion::Changed { .. }), "another namespace has its own limit");
    let service = |name: &str, last: u8| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "shop", "name": name},
            "spec": {"clusterIP": format!("10.0.0.{last}"), "externalIPs": ["10.0.9.1"], "externalName": "x".repeat(40_000)},
        })
    };
    let (address, moved): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
    assert_eq!(snapshot.insert(&service("db", 1)), Insertion::LeftOut(None));
    assert!(snapshot.is_used(address), "the addresses of a Service are always known");
    assert_eq!(snapshot.external_addresses().count(), 1);
    assert_eq!(snapshot.service(&ServiceKey::new("shop", "db")), None);
    assert_eq!(snapshot.insert(&service("db", 2)), Insertion::LeftOut(None));
    assert!(!snapshot.is_used(address) && snapshot.is_used(moved));
    let mut headless = service("headless", 0);
    headless["spec"] = json!({"clusterIP": "None", "externalName": "x".repeat(40_000)});
    assert_eq!(snapshot.insert(&headless), Insertion::LeftOut(None));
    assert_eq!(
        snapshot.names("v1", "Service"),
        [("shop".to_owned(), "db".to_owned())],
        "nothing is kept without addresses"
    );
    assert_eq!(snapshot.services_left_out(), 2);
    assert_eq!(snapshot.remove("v1", "Service", "shop", "headless"), None);
    assert_eq!(snapshot.services_left_out(), 1);

    // The decision about a Service says that workloads are missing, until the object is kept or deleted.
    drop(snapshot);
    assert_eq!(read(&shared, "other", &["Deployment", "Pod"]), [(0, true), (0, false)]);
    let mut snapshot = shared.write().unwrap();
    assert!(!snapshot.has_room_for("apps/v1", "Deployment"));
    for number in 0..kept / 2 {
        let name = format!("web-{number:05}");
        assert!(snapshot.remove("apps/v1", "Deployment", "shop", &name).is_some());
    }
    assert!(snapshot.has_room_for("apps/v1", "Deployment"));
    assert!(snapshot.has_room_for("v1", "Service"));
    assert!(matches!(snapshot.insert(&left_out), Insertion::Changed { before: None, .. }));
    assert!(!snapshot.has_room_for("apps/v1", "Deployment"));
    assert!(matches!(snapshot.insert(&service("db", 3)), Insertion::Changed { before: None, .. }));
    assert!(!snapshot.is_used(moved), "{:?}", snapshot.addresses().collect::<Vec<_>>());
    assert_eq!(snapshot.services_left_out(), 0);

    drop(snapshot);
    assert_eq!(read(&shared, "other", &["Deployment"]), [(0, false)]);

    // Objects that are deleted while their kind is not watched.
    let mut snapshot = shared.write().unwrap();
    for number in 0..kept {
        snapshot.insert(&workload("StatefulSet", number, &json!({"app": "web"}), &spec(number)));
    }
    let kept: BTreeSet<_> = snapshot.names("apps/v1", "StatefulSet").into_iter().collect();
    for (namespace, name) in snapshot.names("apps/v1", "Deployment").into_iter().chain(kept.iter().cloned()) {
        for kind in ["Deployment", "StatefulSet"] {
            snapshot.remove("apps/v1", kind, &namespace, &name);
        }
    }
    assert!(snapshot.has_room_for("apps/v1", "StatefulSet"));
    snapshot.keep_left_out("apps/v1", "StatefulSet", &kept);
    assert!(!snapshot.has_room_for("apps/v1", "StatefulSet"), "those that were left out are gone");
}
