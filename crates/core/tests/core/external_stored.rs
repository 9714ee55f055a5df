//! Which external addresses a stored Service has, and whether they come from this policy.

use clusterip_core::external::claim::{claimed, in_use, read_stored, recorded, requested, shown};
use clusterip_core::service::Service;
use clusterip_core::settings::ExternalSettings;
use serde_json::{Value, json};

use crate::support::ips;

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
        change: fn(&mut Value),
        recorded: &'static [&'static str],
        claimed: &'static [&'static str],
        in_use: &'static [&'static str],
    }
    fn unchanged() -> Case {
        Case {
            name: "all fields",
            change: |_| (),
            recorded: &["10.0.9.4", "fd00::4"],
            claimed: &["10.0.9.1", "10.0.9.2", "10.0.9.3", "10.0.9.4", "fd00::4"],
            in_use: &["10.0.9.1", "10.0.9.2", "10.0.9.3", "10.0.9.4", "10.0.9.6", "fd00::4"],
        }
    }
    let cases = [
        unchanged(),
        Case {
            name: "another type, whose addresses count too",
            change: |service| service["spec"]["type"] = json!("ClusterIP"),
            ..unchanged()
        },
        Case {
            name: "a field with a value that a later version of Kubernetes may add",
            change: |service| service["spec"]["ipFamilyPolicy"] = json!("ThreeStacks"),
            ..unchanged()
        },
        Case {
            name: "fields of the wrong type count as absent",
            change: |service| {
                service["spec"]["loadBalancerIP"] = json!(1);
                service["spec"]["externalIPs"] = json!([1, "10.0.9.1"]);
                service["metadata"]["annotations"]["metallb.io/loadBalancerIPs"] = json!(["10.0.9.2"]);
                service["status"]["loadBalancer"]["ingress"] = json!([1, {"ip": 1}]);
            },
            claimed: &["10.0.9.1", "10.0.9.4", "fd00::4"],
            in_use: &["10.0.9.1", "10.0.9.4", "fd00::4"],
            ..unchanged()
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
    for (annotation, field, expected) in [
        ("", "", &[][..]),
        ("10.0.9.2", "10.0.9.1", &["10.0.9.2", "10.0.9.1"]),
        ("fd00::2,10.0.9.2", "", &["fd00::2", "10.0.9.2"]),
        ("", "10.0.9.1,10.0.9.2", &["10.0.9.1"]),
    ] {
        let mut object = json!({"metadata": {"annotations": {}}, "spec": {"loadBalancerIP": field}});
        object["metadata"]["annotations"]["clusterip-policy/external-address"] = annotation.into();
        assert_eq!(requested(&read_stored(&object)), ips(expected), "annotation {annotation:?}, field {field:?}");
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
    let ours = "clusterip-policy/external";
    // Whether the settings include Services without a class, and whether the Service is ours.
    for (kind, class, default, expected) in [
        ("LoadBalancer", json!(ours), false, true),
        ("LoadBalancer", json!("other"), true, false),
        ("LoadBalancer", Value::Null, false, false),
        ("LoadBalancer", Value::Null, true, true),
        ("LoadBalancer", json!(""), true, true),
        ("ClusterIP", json!(ours), true, false),
    ] {
        let object = json!({"spec": {"type": kind, "loadBalancerClass": class}});
        let with_pools = ExternalSettings { default, pools: vec![Default::default()], ..Default::default() };
        let without_pools = ExternalSettings { default, ..Default::default() };
        for service in [read_stored(&object), Service::read(&object, "object").unwrap()] {
            assert_eq!(with_pools.is_ours(&service), expected, "{object}, {default}");
            assert!(!without_pools.is_ours(&service), "{object}, {default}: without pools");
        }
    }
}
