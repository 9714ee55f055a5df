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
    let several = &[("10.0.0.8", "shop/cart"), ("fd00::9", "shop/web"), ("10.0.0.9", "shop/web")];
    for order in ["spread", "lowest"] {
        for (name, reservations, cluster, expected) in [
            ("an address that the pool hands out", &[("10.0.0.9", "shop/web")][..], cluster(), "10.0.0.9"),
            ("kept for addresses set by hand", &[("10.0.0.2", "shop/web")], cluster(), "10.0.0.2"),
            ("excluded", &[("10.0.0.12", "shop/web")], cluster(), "10.0.0.12"),
            ("in a full pool", &[("10.0.0.9", "shop/web")], full_except(&["10.0.0.9"]), "10.0.0.9"),
            ("one reservation among several", several, cluster(), "10.0.0.9"),
        ] {
            let object = selecting();
            let answer = answer(&object, &settings(reservations, order), &cluster);
            assert_eq!(answer, allocated(&object, &[expected], by("all", "default"), &[]), "{name}, {order}");
            let mut questions = vec![format!("get IPAddress {expected}")];
            if order == "lowest" {
                questions.insert(0, "list Service".to_owned());
            }
            assert_eq!(cluster.questions(), questions, "{name}, {order}");
        }
    }
}

#[test]
fn service_gets_another_address_if_its_own_is_not_free() {
    let failing = LookupError::Failed { resource: "v1 Service".into(), detail: "oh".into() };
    let two = cluster().service("x/z", "10.0.0.9").service("x/y", "10.0.0.9");
    let unlisted = cluster().ip_address("10.0.0.9").failing("list Service", failing);
    let no_service = "another request has reserved it, or an IPAddress object without a Service has it";
    for (name, cluster, why) in [
        ("another Service has it", cluster().service("x/y", "10.0.0.9"), "Service x/y has it"),
        ("two Services have it: the first one by name", two, "Service x/y has it"),
        ("no Service has it", cluster().ip_address("10.0.0.9"), no_service),
        ("the Services can't be listed", unlisted, "looking up v1 Service failed: oh"),
    ] {
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
    let both = &[("10.0.0.9", "shop/web"), ("fd00::9", "shop/web")];
    let six_first = json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]});
    for (reservations, fields, expected) in [
        (&both[..], json!({"ipFamilyPolicy": "RequireDualStack"}), &["10.0.0.9", "fd00::9"][..]),
        (&both[1..], json!({"ipFamilyPolicy": "PreferDualStack"}), &["10.0.0.3", "fd00::9"]),
        (&[("fd00::9", "shop/web"), ("10.0.0.3", "shop/cart")], six_first, &["fd00::9", "10.0.0.4"]),
        // The Service does not ask for this family.
        (&both[1..], json!({}), &["10.0.0.3"]),
    ] {
        let object = with_spec(selecting(), fields);
        let answer = answer(&object, &settings(reservations, "lowest"), &cluster());
        assert_eq!(answer, allocated(&object, expected, by("all", "default"), &[]), "{object}");
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
