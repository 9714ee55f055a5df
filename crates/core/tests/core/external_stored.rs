//! Which external addresses a stored Service has, and whether they come from this policy.

use std::net::IpAddr;

use clusterip_core::external::claim::{claimed, in_use, read_stored, recorded, requested, shown};
use clusterip_core::service::Service;
use clusterip_core::settings::ExternalSettings;
use serde_json::{Value, json};

use crate::support::ip;

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| ip(text)).collect()
}

fn full() -> Value {
    json!({
        "metadata": {"annotations": {
            "clusterip-policy/external-addresses": "10.0.9.4,fd00::4",
            "clusterip-policy/external-address": "10.0.9.5",
            "metallb.io/loadBalancerIPs": "10.0.9.2",
            "example.com/other": "10.0.9.9",
        }},
        "spec": {
            "type": "LoadBalancer",
            "loadBalancerClass": "clusterip-policy/external",
            "loadBalancerIP": "10.0.9.3",
            "externalIPs": ["10.0.9.1", "10.0.9.2"],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.6"}, {"hostname": "x"}, {"ip": "10.0.9.4"}]}},
    })
}

#[test]
fn record_claims_and_status_count_as_held() {
    struct Case {
        name: &'static str,
        /// Changes to the full Service, as a merge patch of two levels.
        change: fn(&mut Value),
        recorded: &'static [&'static str],
        claimed: &'static [&'static str],
        in_use: &'static [&'static str],
    }
    const RECORD: &[&str] = &["10.0.9.4", "fd00::4"];
    const CLAIMED: &[&str] = &["10.0.9.1", "10.0.9.2", "10.0.9.3", "10.0.9.4", "fd00::4"];
    const IN_USE: &[&str] = &["10.0.9.1", "10.0.9.2", "10.0.9.3", "10.0.9.4", "10.0.9.6", "fd00::4"];
    let cases = [
        Case { name: "all fields", change: |_| (), recorded: RECORD, claimed: CLAIMED, in_use: IN_USE },
        Case {
            name: "another type, whose addresses count too",
            change: |service| service["spec"]["type"] = json!("ClusterIP"),
            recorded: RECORD,
            claimed: CLAIMED,
            in_use: IN_USE,
        },
        Case {
            name: "a field with a value that a later version of Kubernetes may add",
            change: |service| service["spec"]["ipFamilyPolicy"] = json!("ThreeStacks"),
            recorded: RECORD,
            claimed: CLAIMED,
            in_use: IN_USE,
        },
        Case {
            name: "fields of the wrong type count as absent",
            change: |service| {
                service["spec"]["loadBalancerIP"] = json!(1);
                service["spec"]["externalIPs"] = json!([1, "10.0.9.1"]);
                service["metadata"]["annotations"]["metallb.io/loadBalancerIPs"] = json!(["10.0.9.2"]);
                service["status"]["loadBalancer"]["ingress"] = json!([1, {"ip": 1}]);
            },
            recorded: RECORD,
            claimed: &["10.0.9.1", "10.0.9.4", "fd00::4"],
            in_use: &["10.0.9.1", "10.0.9.4", "fd00::4"],
        },
        Case {
            name: "other spellings, which the API server accepts in the status too",
            change: |service| {
                service["metadata"]["annotations"] = json!({});
                service["spec"] = json!({"externalIPs": ["::ffff:10.0.9.1"]});
                service["status"]["loadBalancer"]["ingress"] = json!([{"ip": "10.0.09.7"}]);
            },
            recorded: &[],
            claimed: &["10.0.9.1"],
            in_use: &["10.0.9.1", "10.0.9.7"],
        },
        Case { name: "no field", change: |service| *service = json!({}), recorded: &[], claimed: &[], in_use: &[] },
    ];
    for case in cases {
        let mut object = full();
        (case.change)(&mut object);
        let service = read_stored(&object);
        assert_eq!(recorded(&service), ips(case.recorded), "{}: recorded", case.name);
        assert_eq!(claimed(&service), ips(case.claimed), "{}: claimed", case.name);
        assert_eq!(in_use(&object), ips(case.in_use), "{}: in use", case.name);
    }
}

#[test]
fn stored_service_is_read_as_a_requested_one() {
    let mut object = full();
    object["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    assert_eq!(read_stored(&object), Service::read(&object, "object").unwrap());
    for (name, value) in [("empty texts", json!("")), ("null", Value::Null)] {
        for key in ["type", "loadBalancerClass", "loadBalancerIP"] {
            object["spec"][key] = value.clone();
        }
        object["metadata"]["deletionTimestamp"] = Value::Null;
        assert_eq!(read_stored(&object), Service::read(&object, "object").unwrap(), "{name}");
    }
}

/// The addresses that the policy assigns by preference, so only the first of each family counts.
#[test]
fn requested_addresses_are_those_of_the_annotation_then_of_the_field() {
    struct Case {
        name: &'static str,
        annotation: &'static str,
        field: &'static str,
        expected: &'static [&'static str],
    }
    let cases = [
        Case { name: "none", annotation: "", field: "", expected: &[] },
        Case { name: "both", annotation: "10.0.9.2", field: "10.0.9.1", expected: &["10.0.9.2", "10.0.9.1"] },
        Case { name: "both families", annotation: "fd00::2,10.0.9.2", field: "", expected: &["fd00::2", "10.0.9.2"] },
        Case {
            name: "two of a family in the field",
            annotation: "",
            field: "10.0.9.1,10.0.9.2",
            expected: &["10.0.9.1"],
        },
    ];
    for Case { name, annotation, field, expected } in cases {
        let mut object = json!({"metadata": {"annotations": {}}, "spec": {"loadBalancerIP": field}});
        object["metadata"]["annotations"]["clusterip-policy/external-address"] = annotation.into();
        assert_eq!(requested(&read_stored(&object)), ips(expected), "{name}");
    }
}

#[test]
fn addresses_of_the_status_are_read_in_their_order() {
    let ingress = json!([{"ip": "fd00::9"}, {"hostname": "x"}, {"ip": "10.0.9.1", "ipMode": "VIP"}, {"ip": "x"}]);
    assert_eq!(shown(Some(&ingress)), ips(&["fd00::9", "10.0.9.1"]));
    assert_eq!(shown(Some(&json!("10.0.9.1"))), ips(&[]));
    assert_eq!(shown(None), ips(&[]));
}

#[test]
fn type_and_class_decide_whether_external_addresses_come_from_this_policy() {
    struct Case {
        name: &'static str,
        kind: &'static str,
        class: Value,
        /// Whether the settings include Services without a class.
        default: bool,
        expected: bool,
    }
    let ours = || json!("clusterip-policy/external");
    let cases = [
        Case { name: "our class", kind: "LoadBalancer", class: ours(), default: false, expected: true },
        Case { name: "another class", kind: "LoadBalancer", class: json!("other"), default: true, expected: false },
        Case { name: "no class", kind: "LoadBalancer", class: Value::Null, default: false, expected: false },
        Case { name: "no class, by default", kind: "LoadBalancer", class: Value::Null, default: true, expected: true },
        Case {
            name: "an empty class, by default",
            kind: "LoadBalancer",
            class: json!(""),
            default: true,
            expected: true,
        },
        Case { name: "another type", kind: "ClusterIP", class: ours(), default: true, expected: false },
    ];
    for Case { name, kind, class, default, expected } in cases {
        let settings = ExternalSettings { default, pools: vec![Default::default()], ..Default::default() };
        let object = json!({"spec": {"type": kind, "loadBalancerClass": class}});
        assert_eq!(settings.is_ours(&read_stored(&object)), expected, "{name}");
        assert_eq!(settings.is_ours(&Service::read(&object, "object").unwrap()), expected, "{name}: as a request");
        let without_pools = ExternalSettings { default, ..Default::default() };
        assert!(!without_pools.is_ours(&read_stored(&object)), "{name}: without pools");
    }
}
