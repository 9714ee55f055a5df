//! Addresses that the settings reserve for a Service.

use clusterip_core::lookups::LookupError;
use serde_json::{Value, json};

use crate::support::{FakeCluster, allocated, answer, answer_of, by, denied, selecting, service, updated, with_spec};

fn cluster() -> FakeCluster {
    FakeCluster::default()
}

/// One pool for all Services, with these reservations: each an address and `namespace/name`.
fn settings(reservations: &[(&str, &str)], order: &str) -> Value {
    let reservation = |(address, service): &(&str, &str)| {
        let (namespace, name) = service.split_once('/').unwrap();
        json!({"address": address, "namespace": namespace, "name": name})
    };
    json!({"services": {
        "order": order,
        "serviceCIDRs": ["10.0.0.0/16", "fd00::/108"],
        "pools": [{
            "name": "all",
            "cidrs": ["10.0.0.0/28", "fd00::/124"],
            "reserved": 3,
            "exclude": ["10.0.0.12"],
            "reservations": reservations.iter().map(reservation).collect::<Vec<_>>(),
        }],
    }})
}

/// A cluster in which Services have all addresses that the pool hands out to every Service, except `free`.
fn full_except(free: &[&str]) -> FakeCluster {
    let v4 = (3..=14).filter(|last| *last != 12).map(|last| format!("10.0.0.{last}"));
    let v6 = (3..=15).map(|last| format!("fd00::{last:x}"));
    v4.chain(v6)
        .filter(|address| !free.contains(&address.as_str()))
        .fold(cluster(), |cluster, address| cluster.service("x/y", &address))
}

#[test]
fn new_service_gets_the_address_that_is_reserved_for_it() {
    struct Case {
        name: &'static str,
        reservations: &'static [(&'static str, &'static str)],
        cluster: FakeCluster,
        expected: &'static str,
        questions: &'static [&'static str],
    }
    let rows = || {
        vec![
            Case {
                name: "an address that the pool hands out",
                reservations: &[("10.0.0.9", "shop/web")],
                cluster: cluster(),
                expected: "10.0.0.9",
                questions: &["get IPAddress 10.0.0.9"],
            },
            Case {
                name: "an address kept for addresses set by hand",
                reservations: &[("10.0.0.2", "shop/web")],
                cluster: cluster(),
                expected: "10.0.0.2",
                questions: &["get IPAddress 10.0.0.2"],
            },
            Case {
                name: "an excluded address",
                reservations: &[("10.0.0.12", "shop/web")],
                cluster: cluster(),
                expected: "10.0.0.12",
                questions: &["get IPAddress 10.0.0.12"],
            },
            Case {
                name: "a new installation in a full pool",
                reservations: &[("10.0.0.9", "shop/web")],
                cluster: full_except(&["10.0.0.9"]),
                expected: "10.0.0.9",
                questions: &["get IPAddress 10.0.0.9"],
            },
            Case {
                name: "one reservation among several",
                reservations: &[("10.0.0.8", "shop/cart"), ("fd00::9", "shop/web"), ("10.0.0.9", "shop/web")],
                cluster: cluster(),
                expected: "10.0.0.9",
                questions: &["get IPAddress 10.0.0.9"],
            },
        ]
    };
    for order in ["spread", "lowest"] {
        for Case { name, reservations, cluster, expected, questions } in rows() {
            let object = selecting();
            let answer = answer(&object, &settings(reservations, order), &cluster);
            assert_eq!(answer, allocated(&object, &[expected], by("all", "default"), &[]), "{name}, {order}");
            let questions: Vec<&str> =
                (order == "lowest").then_some("list Service").into_iter().chain(questions.iter().copied()).collect();
            assert_eq!(cluster.questions(), questions, "{name}, {order}");
        }
    }
}

#[test]
fn service_gets_another_address_if_its_own_is_not_free() {
    struct Case {
        name: &'static str,
        cluster: FakeCluster,
        why: &'static str,
    }
    let failing = LookupError::Failed { resource: "v1 Service".into(), detail: "oh".into() };
    let rows = [
        Case {
            name: "another Service has it",
            cluster: cluster().service("x/y", "10.0.0.9"),
            why: "Service x/y has it",
        },
        Case {
            name: "two Services have it: the first one by name",
            cluster: cluster().service("x/z", "10.0.0.9").service("x/y", "10.0.0.9"),
            why: "Service x/y has it",
        },
        Case {
            name: "no Service has it",
            cluster: cluster().ip_address("10.0.0.9"),
            why: "another request has reserved it, or an IPAddress object without a Service has it",
        },
        Case {
            name: "the Services can't be listed",
            cluster: cluster().ip_address("10.0.0.9").failing("list Service", failing),
            why: "looking up v1 Service failed: oh",
        },
    ];
    for Case { name, cluster, why } in rows {
        let warning = format!(r#"10.0.0.9, which pool "all" reserves for this Service, is not free: {why}"#);
        let (object, settings) = (selecting(), settings(&[("10.0.0.9", "shop/web")], "spread"));
        let answer = answer(&object, &settings, &cluster);
        let other =
            answer["mutated_object"]["spec"]["clusterIP"].as_str().unwrap_or_else(|| panic!("{name}: {answer}"));
        assert_ne!(other, "10.0.0.9", "{name}");
        assert_eq!(answer, allocated(&object, &[other], by("all", "default"), &[&warning]), "{name}");
    }
    let mut unusable = settings(&[("10.0.0.9", "shop/web")], "lowest");
    unusable["services"]["unusableServiceCIDRs"] = json!({"10.0.0.8/29": "ServiceCIDR b is not ready"});
    let warning = r#"10.0.0.9, which pool "all" reserves for this Service, is not free: ServiceCIDR b is not ready"#;
    let expected = allocated(&selecting(), &["10.0.0.3"], by("all", "default"), &[warning]);
    assert_eq!(answer(&selecting(), &unusable, &cluster()), expected, "the API server refuses it");
}

#[test]
fn reserved_address_is_never_given_to_another_service() {
    let reservations = [("10.0.0.9", "shop/cart"), ("10.0.0.10", "other/web"), ("10.0.0.2", "shop/pay")];
    let why = "pool \"all\" (10.0.0.0/28) is full: 9 of 9 addresses used, the first 3 of each range reserved, 3 reserved for \
               Services; chosen by default; add a range to the pool, delete Services that are not needed, or set \
               services.whenFull: unmanaged";
    for order in ["spread", "lowest"] {
        let settings = settings(&reservations, order);
        let full = full_except(&["10.0.0.9", "10.0.0.10"]);
        let expected = denied(500, &format!("Service shop/web: {why}"), by("all", "default"), &[]);
        assert_eq!(answer(&selecting(), &settings, &full), expected, "{order}");

        let mut unnamed = selecting();
        unnamed["metadata"] = json!({"generateName": "cart", "namespace": "shop"});
        assert_eq!(answer(&unnamed, &settings, &full)["accepted"], false, "{order}: a name yet to be generated");
    }
}

#[test]
fn each_family_has_a_reservation_of_its_own() {
    struct Case {
        name: &'static str,
        reservations: &'static [(&'static str, &'static str)],
        fields: Value,
        expected: &'static [&'static str],
    }
    let rows = [
        Case {
            name: "both",
            reservations: &[("10.0.0.9", "shop/web"), ("fd00::9", "shop/web")],
            fields: json!({"ipFamilyPolicy": "RequireDualStack"}),
            expected: &["10.0.0.9", "fd00::9"],
        },
        Case {
            name: "the second one",
            reservations: &[("fd00::9", "shop/web")],
            fields: json!({"ipFamilyPolicy": "PreferDualStack"}),
            expected: &["10.0.0.3", "fd00::9"],
        },
        Case {
            name: "the first one, which is IPv6",
            reservations: &[("fd00::9", "shop/web"), ("10.0.0.3", "shop/cart")],
            fields: json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}),
            expected: &["fd00::9", "10.0.0.4"],
        },
        Case {
            name: "one that the Service does not ask for",
            reservations: &[("fd00::9", "shop/web")],
            fields: json!({}),
            expected: &["10.0.0.3"],
        },
    ];
    for Case { name, reservations, fields, expected } in rows {
        let object = with_spec(selecting(), fields);
        let answer = answer(&object, &settings(reservations, "lowest"), &cluster());
        assert_eq!(answer, allocated(&object, expected, by("all", "default"), &[]), "{name}");
    }
}

#[test]
fn update_that_needs_an_address_gets_the_reserved_one() {
    let settings = settings(&[("10.0.0.9", "shop/web"), ("fd00::9", "shop/web")], "lowest");
    let external = service(json!({"type": "ExternalName", "externalName": "example.org"}));
    let answer = answer_of(&updated(external, selecting()), &settings, &cluster());
    let listed = with_spec(selecting(), json!({"clusterIPs": ["10.0.0.9"]}));
    assert_eq!(answer, allocated(&listed, &["10.0.0.9"], by("all", "default"), &[]), "from ExternalName");

    // The first address was given before the reservation, and stays.
    let old = with_spec(selecting(), json!({"clusterIP": "10.0.0.4", "clusterIPs": ["10.0.0.4"]}));
    let new = with_spec(old.clone(), json!({"ipFamilyPolicy": "RequireDualStack"}));
    let answer = answer_of(&updated(old, new.clone()), &settings, &cluster().service("shop/web", "10.0.0.4"));
    assert_eq!(answer, allocated(&new, &["10.0.0.4", "fd00::9"], by("all", "default"), &[]), "a second address");
}

#[test]
fn only_a_reservation_in_the_pool_of_the_service_counts() {
    let mut settings = settings(&[("10.0.0.9", "shop/web")], "lowest");
    settings["services"]["pools"][0]["match"] = json!({"os": "windows"});
    let pools = settings["services"]["pools"].as_array_mut().unwrap();
    pools.push(json!({"name": "linux", "cidrs": ["10.0.1.0/28"]}));
    let answer = answer(&selecting(), &settings, &cluster());
    assert_eq!(answer["mutated_object"]["spec"]["clusterIP"], "10.0.1.1");
    assert_eq!(answer["warnings"], Value::Null);
}

#[test]
fn address_behind_a_reserved_one_keeps_its_place_in_the_order() {
    let given = |name: &str, reservations: &[(&str, &str)], order: &str| {
        let mut object = selecting();
        object["metadata"]["name"] = name.into();
        let answer = answer(&object, &settings(reservations, order), &cluster());
        answer["mutated_object"]["spec"]["clusterIP"].as_str().unwrap().to_owned()
    };
    for order in ["spread", "lowest"] {
        for number in 0..50 {
            let name = format!("web-{number}");
            let before = given(&name, &[], order);
            let after = given(&name, &[("10.0.0.7", "a/a"), ("10.0.0.11", "a/b"), ("10.0.0.2", "a/c")], order);
            assert!(
                after == before || ["10.0.0.7", "10.0.0.11"].contains(&before.as_str()),
                "{name}: {before}, {after}"
            );
        }
    }
}
