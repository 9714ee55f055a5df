//! Requests of Kubewarden's audit scanner: existing objects, sent as if they were being created.

use std::sync::{Arc, RwLock};

use clusterip_cluster::lookups::complete_objects::CompleteObjects;
use clusterip_core::Response;
use serde_json::{Value, json};

use crate::support::{evaluate, snapshot, workload};

/// The request for an object as the scanner sends it and policy-server passes it on: there is no user, the resource has
/// the name of the kind, and the UID is that of the object.
pub fn scan(object: &Value) -> Value {
    let kind = json!({"group": "", "version": "v1", "kind": "Service"});
    json!({
        "uid": object["metadata"]["uid"],
        "kind": kind,
        "resource": {"group": "", "version": "v1", "resource": "Service"},
        "requestKind": kind,
        "name": object["metadata"]["name"],
        "namespace": object["metadata"]["namespace"],
        "operation": "CREATE",
        "userInfo": {},
        "object": object,
    })
}

/// The result in the scanner's report.
#[derive(Debug, PartialEq, Eq)]
enum Result {
    Pass,
    /// A failure with the message of the report.
    Fail(String),
    /// An answer with status 500, which says nothing about the object.
    Error(String),
}

impl Result {
    fn of(answer: &Response) -> Self {
        let message = answer.message.clone().unwrap_or_default();
        match (answer.accepted, answer.code) {
            (true, _) => Self::Pass,
            (false, Some(500)) => Self::Error(message),
            (false, _) => Self::Fail(message),
        }
    }
}

/// A stored Service; `addresses` are its `clusterIPs`.
fn stored(namespace: &str, name: &str, addresses: &[&str]) -> Value {
    let family = |address: &&str| if address.contains(':') { "IPv6" } else { "IPv4" };
    let policy = if addresses.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name, "namespace": namespace,
            "uid": "5b2e6cf2-0f62-4a3f-9d39-6d9c0f6a1a11", "resourceVersion": "41",
            "managedFields": [{"manager": "helm", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}],
        },
        "spec": {
            "selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}], "type": "ClusterIP",
            "clusterIP": addresses[0], "clusterIPs": addresses,
            "ipFamilies": addresses.iter().map(family).collect::<Vec<_>>(), "ipFamilyPolicy": policy,
            "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
        },
        "status": {"loadBalancer": {}},
    })
}

fn external_name() -> Value {
    let mut service = stored("shop", "web", &["10.0.1.7"]);
    service["spec"] = json!({"type": "ExternalName", "externalName": "mail.example.com", "sessionAffinity": "None"});
    service
}

/// A cluster with a Windows Deployment, and the scanned Service with its `IPAddress` objects.
fn cluster(object: &Value) -> Arc<RwLock<CompleteObjects>> {
    let mut objects = vec![workload("apps/v1", "Deployment", "windows"), object.clone()];
    for address in object["spec"]["clusterIPs"].as_array().into_iter().flatten() {
        objects.push(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress", "metadata": {"name": address},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "shop", "name": "web"}},
        }));
    }
    snapshot(objects)
}

fn settings(order: &str, explicit: &str) -> Value {
    json!({"services": {
        "order": order, "explicit": explicit, "serviceCIDRs": ["10.0.0.0/16", "fd00::/108"],
        "evidence": {"kinds": ["Deployment"]},
        "pools": [
            {"name": "windows", "cidrs": ["10.0.1.0/24", "fd00::1:0/112"], "reserved": 50, "exclude": ["10.0.1.200/29"],
             "match": {"os": "windows"}},
            {"name": "linux", "cidrs": ["10.0.2.0/24", "fd00::2:0/112"], "match": {"os": "linux"}},
        ],
    }})
}

#[test]
fn existing_service_is_judged_by_its_pool_and_not_by_its_own_address() {
    struct Case {
        name: &'static str,
        object: Value,
        complaints: Vec<String>,
    }
    const WHY: &str = "kubernetes.io/os=windows (Deployment shop/web)";
    let misplaced = |address: &str| format!("{address} lies in pool \"linux\", expected pool \"windows\": {WHY}");
    let one = |address: &str| vec![misplaced(address)];
    let both = || vec![misplaced("10.0.2.7"), misplaced("fd00::2:7")];
    // A misplaced Service has these complaints: denials with `explicit: deny`, warnings with `warn`.
    let rows = [
        Case { name: "in its pool", object: stored("shop", "web", &["10.0.1.77"]), complaints: vec![] },
        Case {
            name: "in the reserved part of its pool",
            object: stored("shop", "web", &["10.0.1.7"]),
            complaints: vec![],
        },
        Case {
            name: "outside every pool",
            object: stored("shop", "web", &["10.0.9.7"]),
            complaints: vec![format!("10.0.9.7 lies in no pool, expected pool \"windows\": {WHY}")],
        },
        Case { name: "in another pool", object: stored("shop", "web", &["10.0.2.7"]), complaints: one("10.0.2.7") },
        Case {
            name: "excluded",
            object: stored("shop", "web", &["10.0.1.201"]),
            complaints: vec!["10.0.1.201 is excluded from pool \"windows\"".to_owned()],
        },
        Case {
            name: "both families in its pool",
            object: stored("shop", "web", &["10.0.1.77", "fd00::1:77"]),
            complaints: vec![],
        },
        Case { name: "IPv6 first", object: stored("shop", "web", &["fd00::1:77", "10.0.1.77"]), complaints: vec![] },
        Case {
            name: "both in another pool",
            object: stored("shop", "web", &["10.0.2.7", "fd00::2:7"]),
            complaints: both(),
        },
        Case {
            name: "the second in another pool",
            object: stored("shop", "web", &["10.0.1.77", "fd00::2:7"]),
            complaints: one("fd00::2:7"),
        },
        Case { name: "headless", object: stored("shop", "web", &["None"]), complaints: vec![] },
        Case { name: "ExternalName", object: external_name(), complaints: vec![] },
        Case {
            name: "in an exempt namespace",
            object: stored("kube-system", "web", &["10.0.2.7"]),
            complaints: vec![],
        },
        Case { name: "default/kubernetes", object: stored("default", "kubernetes", &["10.0.0.1"]), complaints: vec![] },
    ];
    for Case { name, object, complaints } in &rows {
        for order in ["spread", "lowest"] {
            for explicit in ["deny", "warn", "allow"] {
                let (answer, exchanges) = evaluate(&scan(object), &settings(order, explicit), &cluster(object));
                let (result, warnings) = match explicit {
                    "deny" if !complaints.is_empty() => {
                        let complaints = complaints.join("; ");
                        let remedy = "omit clusterIP, or use an address of the Service's pool";
                        (Result::Fail(format!("Service shop/web: {complaints}; {remedy}")), None)
                    }
                    "warn" if !complaints.is_empty() => (Result::Pass, Some(complaints.clone())),
                    _ => (Result::Pass, None),
                };
                let row = format!("{name}, order {order}, explicit {explicit}");
                assert_eq!((Result::of(&answer), answer.warnings.clone()), (result, warnings), "{row}");
                assert_eq!(answer.mutated_object, None, "{row}");
                // The policy must not ask whether the address is free: it is not, because the Service has it.
                let asked = exchanges.iter().map(|exchange| crate::support::words(&exchange.call));
                assert!(
                    asked.clone().all(|call| call == "list apps/v1/Deployment"),
                    "{row}: {:?}",
                    asked.collect::<Vec<_>>()
                );
            }
        }
    }
}

#[test]
fn failed_look_up_is_an_audit_error_and_not_a_service_failure() {
    let object = stored("shop", "web", &["10.0.2.7"]);
    let cluster = cluster(&object);
    cluster.write().unwrap().remove_api("apps/v1", "Deployment");
    let (answer, _) = evaluate(&scan(&object), &settings("spread", "deny"), &cluster);
    let expected = "Service shop/web: the cluster has no apps/v1/Deployment: Cannot find resource apps/v1/Deployment; \
        install the API, or remove the kind from services.evidence.kinds";
    assert_eq!(Result::of(&answer), Result::Error(expected.to_owned()));
}

#[test]
fn service_without_address_passes_if_its_pool_has_one() {
    // A Service without an address, as after the loss of its address. The API server never stores one like that.
    for order in ["spread", "lowest"] {
        let mut object = stored("shop", "web", &["10.0.1.77"]);
        for field in ["clusterIP", "clusterIPs"] {
            object["spec"].as_object_mut().unwrap().remove(field);
        }
        let (answer, _) = evaluate(&scan(&object), &settings(order, "deny"), &cluster(&object));
        assert_eq!((Result::of(&answer), answer.mutated_object.is_some()), (Result::Pass, true), "{order}");
    }
}
