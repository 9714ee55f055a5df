//! Which Service may claim an address of an external pool, in any field or annotation.

use crate::support::claim_cases::{CILIUM, DEPRECATED, annotated, check, cluster, external_ips, with};
use crate::support::{Now, answer_of, balancer, created, nothing, refused, updated, with_record, with_spec};
use serde_json::{Value, json};

/// The refusal of a claim on 10.0.9.20 in this place.
fn held(place: &str) -> Now {
    refused(&format!("{place}: 10.0.9.20 of pool \"edge\" is held by other/db"))
}

#[test]
fn every_address_of_external_ips_is_checked() {
    let not_admitted = "spec.externalIPs: 10.0.6.9 lies in pool \"other\", which does not admit this Service: \
                        namespaces does not match";
    let several = format!("{not_admitted}; spec.externalIPs: fd00::9:20 of pool \"edge\" is held by other/db");
    let of = |addresses: &[&str]| created(external_ips(addresses));
    let excluded = refused("spec.externalIPs: 10.0.9.11 is excluded from pool \"edge\"");
    let headless = with(json!({"clusterIP": "None", "externalIPs": ["10.0.9.20"]}));
    check(vec![
        ("none", created(with(json!({}))), nothing()),
        ("free", of(&["10.0.9.10"]), nothing().with(DEPRECATED)),
        ("held", of(&["10.0.9.10", "10.0.9.20"]), held("spec.externalIPs").with(DEPRECATED)),
        ("held by the Service itself", of(&["10.0.9.21"]), nothing().with(DEPRECATED)),
        ("excluded", of(&["10.0.9.11"]), excluded.with(DEPRECATED)),
        ("in a pool for other namespaces", of(&["10.0.6.9"]), refused(not_admitted).with(DEPRECATED)),
        ("several mistakes", of(&["10.0.6.9", "fd00::9:20", "10.0.6.9"]), refused(&several).with(DEPRECATED)),
        ("in no pool", of(&["192.0.2.1"]), nothing().with(DEPRECATED)),
        ("not an IP address", of(&["router", ""]), nothing()),
        ("of a headless Service", created(headless), held("spec.externalIPs").with(DEPRECATED)),
    ]);
}

#[test]
fn load_balancer_ip_is_checked() {
    let at = |address: &str| created(with(json!({"type": "LoadBalancer", "loadBalancerIP": address})));
    check(vec![
        ("free", at("10.0.9.10"), nothing()),
        ("held", at("10.0.9.20"), held("spec.loadBalancerIP")),
        ("in no pool", at("192.0.2.1"), nothing()),
    ]);
}

#[test]
fn names_that_kube_vip_looks_up_are_refused() {
    let name = |field: &str, name: &str| {
        refused(&format!("{field}: {name:?} is not an IP address, and kube-vip would look up a name"))
    };
    let kube_vip = |text: &str| annotated("kube-vip.io/loadbalancerIPs", text);
    let label = "annotation kube-vip.io/loadbalancerIPs";
    // A Service of another type may become one of type LoadBalancer later.
    for kind in ["LoadBalancer", "ClusterIP"] {
        let object = with(json!({"type": kind, "loadBalancerIP": "lb.example.com"}));
        check(vec![(kind, created(object), name("spec.loadBalancerIP", "lb.example.com"))]);
    }
    let many = "192.0.2.1,".repeat(100);
    let too_long = refused(&format!("{label}: {:?}… is longer than 255 characters", &many[..80]));
    let metallb = annotated("metallb.io/loadBalancerIPs", "vip.example.com");
    let (old, new) = (kube_vip("vip.example.com"), kube_vip("192.0.2.1,vip.example.com"));
    let another = updated(kube_vip("a.example.com"), kube_vip("a.example.com,b.example.com"));
    let beside = kube_vip("192.0.2.1, vip.example.com ,::ffff:192.0.2.1");
    check(vec![
        ("beside addresses", created(beside), name(label, "vip.example.com")),
        ("behind more text than is read", created(kube_vip(&format!("{many}vip.example.com"))), too_long),
        ("an annotation in which no program looks up names", created(metallb), nothing()),
        ("the Service had the name before, and gets an address", updated(old, new), nothing()),
        ("the Service had another name", another, name(label, "b.example.com")),
    ]);
    // Resolvers read some of these as addresses.
    for text in ["192.000.002.001", "192.0.2", "0xc0000201", "3221225985", "fe80::1%eth0", "192.0.2.1 x"] {
        check(vec![(text, created(kube_vip(text)), name(label, text))]);
    }
}

#[test]
fn every_annotation_that_claims_addresses_is_checked() {
    let several = annotated("lbipam.cilium.io/ips", " 192.0.2.1 ,, x, 10.0.9.20");
    check(vec![
        ("an unknown annotation", created(annotated("example.com/ips", "10.0.9.20")), nothing()),
        ("several in one annotation", created(several), held(CILIUM)),
    ]);
    for key in [
        "metallb.io/loadBalancerIPs",
        "metallb.universe.tf/loadBalancerIPs",
        "lbipam.cilium.io/ips",
        "io.cilium/lb-ipam-ips",
        "kube-vip.io/loadbalancerIPs",
    ] {
        let refused = held(&format!("annotation {key}"));
        check(vec![(key, created(annotated(key, "10.0.9.20")), refused)]);
        check(vec![(key, created(annotated(key, "10.0.9.10")), nothing())]);
    }
}

#[test]
fn only_new_claims_are_checked() {
    let ips = external_ips;
    let metallb = "metallb.io/loadBalancerIPs";
    let moved = updated(ips(&["10.0.9.20"]), annotated(metallb, "10.0.9.20"));
    let moved_own = updated(ips(&["10.0.9.21"]), annotated(metallb, "10.0.9.21"));
    let added = updated(ips(&["10.0.9.20"]), ips(&["10.0.9.20", "10.0.9.10"]));
    let added_held = updated(ips(&["10.0.9.10"]), ips(&["10.0.9.10", "10.0.9.20"]));
    check(vec![
        ("unchanged", updated(ips(&["10.0.9.20"]), ips(&["10.0.9.20"])), nothing()),
        ("unchanged but for its notation", updated(ips(&["10.0.9.20"]), ips(&["10.0.9.020"])), nothing()),
        ("a free address is added", added, nothing().with(DEPRECATED)),
        ("an address of another Service is added", added_held, held("spec.externalIPs").with(DEPRECATED)),
        ("the claim is removed", updated(ips(&["10.0.9.20"]), with(json!({}))), nothing()),
        ("the claim moves to another field", moved, held(&format!("annotation {metallb}"))),
        ("the claim on an own address moves to another field", moved_own, nothing()),
    ]);
}

#[test]
fn disguised_address_is_recognised() {
    let ips = |text: &str| created(external_ips(&[text]));
    for text in
        ["10.0.9.020", "010.000.009.0020", " 10.0.9.20 ", "::ffff:10.0.9.20", "::ffff:a00:914", "::FFFF:10.0.09.20"]
    {
        let cilium = created(annotated("lbipam.cilium.io/ips", text));
        check(vec![(text, ips(text), held("spec.externalIPs").with(DEPRECATED)), (text, cilium, held(CILIUM))]);
    }
    let six = refused("spec.externalIPs: fd00::9:20 of pool \"edge\" is held by other/db").with(DEPRECATED);
    for text in ["FD00:0::0009:20", "fd00:0:0:0:0:0:0.9.0.32"] {
        check(vec![(text, ips(text), six.clone())]);
    }
    // No program parses these texts as addresses.
    for text in ["10.0.9", "10.0.9.20.0", "10.0.9.+20", "10.0.9.0x14", "10.0.9.276", "10.0.9.", "10.0.9.20:80", "[::1]"]
    {
        check(vec![(text, ips(text), nothing())]);
    }
    check(vec![("not ASCII", ips("1.2.3.é"), nothing())]);
}

#[test]
fn without_external_pools_claims_are_ignored() {
    let object = with_record(annotated("metallb.io/loadBalancerIPs", "10.0.9.20"), "10.0.9.20");
    let object = with_spec(object, json!({"externalIPs": ["10.0.9.20"]}));
    let settings = json!({"nodes": {"pools": [{"name": "n", "cidrs": ["10.1.0.0/16"]}]}});
    let cluster = cluster();
    assert_eq!(answer_of(&created(object), &settings, &cluster), Value::from(nothing()));
    assert_eq!(cluster.questions(), [""; 0]);
}

/// One Service can't use up a pool by claims: those beyond the limit are refused.
#[test]
fn claims_beyond_the_limit_are_refused() {
    let list = |count: u8| (0..count).map(|last| format!("10.0.9.{}", 22 + last)).collect::<Vec<_>>();
    let too_many = |place: &str, address: &str, most: u8| {
        refused(&format!("{place}: {address} is one too many: at most {most} addresses count"))
    };
    let too_long =
        |place: &str, text: &str| refused(&format!("{place}: {:?}… is longer than 255 characters", &text[..80]));
    let ips = |count: u8| created(with(json!({ "externalIPs": list(count) })));
    let cilium = |text: &str| annotated("lbipam.cilium.io/ips", text);
    let three = || cilium(&list(3).join(","));
    let outside: Vec<String> = (1..=8).map(|last| format!("192.0.2.{last}")).collect();
    let in_pool = ["10.0.9.22".to_owned()];
    let in_order = |lists: [&[String]; 2]| with(json!({ "externalIPs": lists.concat() }));
    let moved_back = updated(in_order([&in_pool, &outside]), in_order([&outside, &in_pool]));
    let long = format!("{}10.0.9.22", " ".repeat(300));
    let long_outside = format!("{}192.0.2.22", " ".repeat(300));
    let long_item = created(with(json!({ "externalIPs": ["192.0.2.1", long] })));
    let long_record = format!("10.0.9.22{}", " ".repeat(300));
    let record = "annotation clusterip-policy/external-addresses";
    check(vec![
        ("8 addresses in externalIPs", ips(8), nothing().with(DEPRECATED)),
        ("9 in externalIPs", ips(9), too_many("spec.externalIPs", "10.0.9.30", 8).with(DEPRECATED)),
        ("2 addresses in an annotation", created(cilium(&list(2).join(","))), nothing()),
        ("3 addresses in an annotation", created(three()), too_many(CILIUM, "10.0.9.24", 2)),
        ("3 addresses in no pool", created(cilium("192.0.2.1,192.0.2.2,192.0.2.3")), nothing()),
        ("3 addresses, unchanged", updated(three(), three()), nothing()),
        ("a text that is too long", created(cilium(&long)), too_long(CILIUM, &long)),
        ("an address in no pool in it", created(cilium(&long_outside)), too_long(CILIUM, &long)),
        ("an item that is too long", long_item, too_long("spec.externalIPs", &long).with(DEPRECATED)),
        ("a text that is too long, unchanged", updated(cilium(&long), cilium(&long)), nothing()),
        ("behind 8 others", moved_back, too_many("spec.externalIPs", "10.0.9.22", 8).with(DEPRECATED)),
        (
            "a record that is too long",
            created(with_record(balancer(&[("a", "b")]), &long_record)),
            too_long(record, &long_record),
        ),
    ]);
}
