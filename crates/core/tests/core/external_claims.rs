//! Which Service may claim an address of an external pool, in any field or annotation.

use crate::support::claim_cases::{
    CILIUM, Case, DEPRECATED, annotated, check, cluster, external_ips, nothing, refused, with,
};
use crate::support::{answer_of, balancer_of, created, updated, with_record, with_spec};
use serde_json::json;

#[test]
fn every_address_of_external_ips_is_checked() {
    let not_admitted = "spec.externalIPs: 10.0.6.9 lies in pool \"other\", which does not admit this Service: \
                        namespaces does not match";
    check(vec![
        Case { name: "none", request: created(with(json!({}))), expected: nothing(&[]) },
        Case {
            name: "spec.externalIPs, free",
            request: created(external_ips(&["10.0.9.10"])),
            expected: nothing(&[DEPRECATED]),
        },
        Case {
            name: "spec.externalIPs, held",
            request: created(external_ips(&["10.0.9.10", "10.0.9.20"])),
            expected: refused("spec.externalIPs: 10.0.9.20 of pool \"edge\" is held by other/db").with(&[DEPRECATED]),
        },
        Case {
            name: "spec.externalIPs, held by the Service itself",
            request: created(external_ips(&["10.0.9.21"])),
            expected: nothing(&[DEPRECATED]),
        },
        Case {
            name: "spec.externalIPs, excluded",
            request: created(external_ips(&["10.0.9.11"])),
            expected: refused("spec.externalIPs: 10.0.9.11 is excluded from pool \"edge\"").with(&[DEPRECATED]),
        },
        Case {
            name: "spec.externalIPs, in a pool for other namespaces",
            request: created(external_ips(&["10.0.6.9"])),
            expected: refused(not_admitted).with(&[DEPRECATED]),
        },
        Case {
            name: "spec.externalIPs, several mistakes",
            request: created(external_ips(&["10.0.6.9", "fd00::9:20", "10.0.6.9"])),
            expected: refused(&format!(
                "{not_admitted}; spec.externalIPs: fd00::9:20 of pool \"edge\" is held by other/db"
            ))
            .with(&[DEPRECATED]),
        },
        Case {
            name: "spec.externalIPs, in no pool",
            request: created(external_ips(&["192.0.2.1"])),
            expected: nothing(&[DEPRECATED]),
        },
        Case {
            name: "spec.externalIPs, not an IP address",
            request: created(external_ips(&["router", ""])),
            expected: nothing(&[]),
        },
        Case {
            name: "spec.externalIPs of a headless Service",
            request: created(with(json!({"clusterIP": "None", "externalIPs": ["10.0.9.20"]}))),
            expected: refused("spec.externalIPs: 10.0.9.20 of pool \"edge\" is held by other/db").with(&[DEPRECATED]),
        },
    ]);
}

#[test]
fn load_balancer_ip_is_checked() {
    let balancer_ip = |address: &str| with(json!({"type": "LoadBalancer", "loadBalancerIP": address}));
    check(vec![
        Case { name: "spec.loadBalancerIP, free", request: created(balancer_ip("10.0.9.10")), expected: nothing(&[]) },
        Case {
            name: "spec.loadBalancerIP, held",
            request: created(balancer_ip("10.0.9.20")),
            expected: refused("spec.loadBalancerIP: 10.0.9.20 of pool \"edge\" is held by other/db").with(&[]),
        },
        Case {
            name: "spec.loadBalancerIP, in no pool",
            request: created(balancer_ip("192.0.2.1")),
            expected: nothing(&[]),
        },
    ]);
}

#[test]
fn names_that_kube_vip_looks_up_are_refused() {
    let name = |field: &str, name: &str| {
        refused(&format!("{field}: {name:?} is not an IP address, and kube-vip would look up a name")).with(&[])
    };
    let kube_vip = |text: &str| annotated("kube-vip.io/loadbalancerIPs", text);
    let label = "annotation kube-vip.io/loadbalancerIPs";
    let mut rows = vec![
        Case {
            name: "spec.loadBalancerIP",
            request: created(with(json!({"type": "LoadBalancer", "loadBalancerIP": "lb.example.com"}))),
            expected: name("spec.loadBalancerIP", "lb.example.com"),
        },
        Case {
            name: "of a Service that becomes one of type LoadBalancer later",
            request: created(with(json!({"type": "ClusterIP", "loadBalancerIP": "lb.example.com"}))),
            expected: name("spec.loadBalancerIP", "lb.example.com"),
        },
        Case {
            name: "beside addresses",
            request: created(kube_vip("192.0.2.1, vip.example.com ,::ffff:192.0.2.1")),
            expected: name(label, "vip.example.com"),
        },
        Case {
            name: "behind more text than is read for addresses",
            request: created(kube_vip(&format!("{}vip.example.com", "192.0.2.1,".repeat(100)))),
            expected: refused(&format!("{label}: {:?}… is longer than 255 characters", "192.0.2.1,".repeat(8)))
                .with(&[]),
        },
        Case {
            name: "an annotation in which no program looks up names",
            request: created(annotated("metallb.io/loadBalancerIPs", "vip.example.com")),
            expected: nothing(&[]),
        },
        Case {
            name: "the Service had the name before, and gets an address",
            request: updated(kube_vip("vip.example.com"), kube_vip("192.0.2.1,vip.example.com")),
            expected: nothing(&[]),
        },
        Case {
            name: "the Service had another name",
            request: updated(kube_vip("a.example.com"), kube_vip("a.example.com,b.example.com")),
            expected: name(label, "b.example.com"),
        },
    ];
    // Resolvers read some of these as addresses.
    for text in ["192.000.002.001", "192.0.2", "0xc0000201", "3221225985", "fe80::1%eth0", "192.0.2.1 x"] {
        rows.push(Case { name: "a number", request: created(kube_vip(text)), expected: name(label, text) });
    }
    check(rows);
}

#[test]
fn every_annotation_that_claims_addresses_is_checked() {
    let mut rows = vec![
        Case {
            name: "an unknown annotation",
            request: created(annotated("example.com/ips", "10.0.9.20")),
            expected: nothing(&[]),
        },
        Case {
            name: "several in one annotation",
            request: created(annotated("lbipam.cilium.io/ips", " 192.0.2.1 ,, x, 10.0.9.20")),
            expected: refused(&format!("{CILIUM}: 10.0.9.20 of pool \"edge\" is held by other/db")).with(&[]),
        },
    ];
    let keys = [
        "metallb.io/loadBalancerIPs",
        "metallb.universe.tf/loadBalancerIPs",
        "lbipam.cilium.io/ips",
        "io.cilium/lb-ipam-ips",
        "kube-vip.io/loadbalancerIPs",
    ];
    for key in keys {
        let held = format!("annotation {key}: 10.0.9.20 of pool \"edge\" is held by other/db");
        let refused = refused(&held).with(&[]);
        rows.push(Case { name: key, request: created(annotated(key, "10.0.9.20")), expected: refused });
        rows.push(Case { name: key, request: created(annotated(key, "10.0.9.10")), expected: nothing(&[]) });
    }
    check(rows);
}

#[test]
fn only_new_claims_are_checked() {
    let old = || external_ips(&["10.0.9.20"]);
    let metallb = "metallb.io/loadBalancerIPs";
    let moved = annotated(metallb, "10.0.9.20");
    check(vec![
        Case { name: "the claim is unchanged", request: updated(old(), old()), expected: nothing(&[]) },
        Case {
            name: "the claim is unchanged but for its notation",
            request: updated(old(), external_ips(&["10.0.9.020"])),
            expected: nothing(&[]),
        },
        Case {
            name: "a free address is added",
            request: updated(old(), external_ips(&["10.0.9.20", "10.0.9.10"])),
            expected: nothing(&[DEPRECATED]),
        },
        Case {
            name: "an address that is held by another Service is added",
            request: updated(external_ips(&["10.0.9.10"]), external_ips(&["10.0.9.10", "10.0.9.20"])),
            expected: refused("spec.externalIPs: 10.0.9.20 of pool \"edge\" is held by other/db").with(&[DEPRECATED]),
        },
        Case { name: "the claim is removed", request: updated(old(), with(json!({}))), expected: nothing(&[]) },
        Case {
            name: "the claim moves to another field",
            request: updated(old(), moved.clone()),
            expected: refused(&format!("annotation {metallb}: 10.0.9.20 of pool \"edge\" is held by other/db"))
                .with(&[]),
        },
        Case {
            name: "the claim on an own address moves to another field",
            request: updated(external_ips(&["10.0.9.21"]), annotated(metallb, "10.0.9.21")),
            expected: nothing(&[]),
        },
    ]);
}

#[test]
fn disguised_address_is_recognised() {
    let held = |field: &str| refused(&format!("{field}: 10.0.9.20 of pool \"edge\" is held by other/db"));
    let rows =
        ["10.0.9.020", "010.000.009.0020", " 10.0.9.20 ", "::ffff:10.0.9.20", "::ffff:a00:914", "::FFFF:10.0.09.20"];
    for text in rows {
        let cilium = annotated("lbipam.cilium.io/ips", text);
        check(vec![
            Case {
                name: text,
                request: created(external_ips(&[text])),
                expected: held("spec.externalIPs").with(&[DEPRECATED]),
            },
            Case { name: text, request: created(cilium), expected: held(CILIUM).with(&[]) },
        ]);
    }
    let six = refused("spec.externalIPs: fd00::9:20 of pool \"edge\" is held by other/db").with(&[DEPRECATED]);
    for text in ["FD00:0::0009:20", "fd00:0:0:0:0:0:0.9.0.32"] {
        check(vec![Case { name: text, request: created(external_ips(&[text])), expected: six.clone() }]);
    }
    // No program parses these texts as addresses.
    for text in [
        "10.0.9",
        "10.0.9.20.0",
        "10.0.9.+20",
        "10.0.9.0x14",
        "10.0.9.276",
        "10.0.9.",
        "10.0.9.20:80",
        "[::1]",
        "1.2.3.é",
    ] {
        check(vec![Case { name: text, request: created(external_ips(&[text])), expected: nothing(&[]) }]);
    }
}

#[test]
fn without_external_pools_claims_are_ignored() {
    let object = with_record(annotated("metallb.io/loadBalancerIPs", "10.0.9.20"), "10.0.9.20");
    let object = with_spec(object, json!({"externalIPs": ["10.0.9.20"]}));
    let settings = json!({"nodes": {"pools": [{"name": "n", "cidrs": ["10.1.0.0/16"]}]}});
    let cluster = cluster();
    assert_eq!(answer_of(&created(object), &settings, &cluster), nothing(&[]));
    assert_eq!(cluster.questions(), [""; 0]);
}

/// One Service can't use up a pool by claims: those beyond the limit are refused.
#[test]
fn claims_beyond_the_limit_are_refused() {
    let list = |count: u8| (0..count).map(|last| format!("10.0.9.{}", 22 + last)).collect::<Vec<_>>();
    let too_many = |place: &str, address: &str, most: u8| {
        refused(&format!("{place}: {address} is one too many: at most {most} addresses count"))
    };
    let ips = |count: u8| with(json!({ "externalIPs": list(count) }));
    let cilium = |text: &str| annotated("lbipam.cilium.io/ips", text);
    let three = || cilium(&list(3).join(","));
    const IN_POOL: &str = "10.0.9.22";
    const OUTSIDE: [&str; 8] =
        ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6", "192.0.2.7", "192.0.2.8"];
    let in_order = |first: &[&str], last: &[&str]| {
        let all = [first, last].concat();
        with(json!({ "externalIPs": all }))
    };
    let long = format!("{}10.0.9.22", " ".repeat(300));
    let too_long = |place: &str| refused(&format!("{place}: {:?}… is longer than 255 characters", " ".repeat(80)));
    check(vec![
        Case {
            name: "eight addresses in spec.externalIPs",
            request: created(ips(8)),
            expected: nothing(&[DEPRECATED]),
        },
        Case {
            name: "nine addresses in spec.externalIPs",
            request: created(ips(9)),
            expected: too_many("spec.externalIPs", "10.0.9.30", 8).with(&[DEPRECATED]),
        },
        Case {
            name: "two addresses in an annotation",
            request: created(cilium(&list(2).join(","))),
            expected: nothing(&[]),
        },
        Case {
            name: "three addresses in an annotation",
            request: created(three()),
            expected: too_many(CILIUM, "10.0.9.24", 2).with(&[]),
        },
        Case {
            name: "three addresses in no pool",
            request: created(cilium("192.0.2.1,192.0.2.2,192.0.2.3")),
            expected: nothing(&[]),
        },
        Case {
            name: "an address in a text that is too long",
            request: created(cilium(&long)),
            expected: too_long(CILIUM).with(&[]),
        },
        Case {
            name: "an address in no pool, in a text that is too long",
            request: created(cilium(&long.replace("10.0.9", "192.0.2"))),
            expected: too_long(CILIUM).with(&[]),
        },
        Case {
            name: "an item that is too long",
            request: created(with(json!({ "externalIPs": ["192.0.2.1", long] }))),
            expected: too_long("spec.externalIPs").with(&[DEPRECATED]),
        },
        Case {
            name: "a text that is too long, unchanged",
            request: updated(cilium(&long), cilium(&long)),
            expected: nothing(&[]),
        },
        Case {
            name: "an address behind eight others, before which it was",
            request: updated(in_order(&[IN_POOL], &OUTSIDE), in_order(&OUTSIDE, &[IN_POOL])),
            expected: too_many("spec.externalIPs", IN_POOL, 8).with(&[DEPRECATED]),
        },
        Case { name: "three addresses, unchanged", request: updated(three(), three()), expected: nothing(&[]) },
    ]);
    let record = "clusterip-policy/external-addresses";
    let text = format!("10.0.9.22{}", " ".repeat(300));
    let object = with_record(balancer_of(json!({"ipFamilies": ["IPv4"]}), &[]), &text);
    let quoted = format!("\"10.0.9.22{}\"…", " ".repeat(71));
    let expected = refused(&format!("annotation {record}: {quoted} is longer than 255 characters")).with(&[]);
    check(vec![Case { name: "a record that is too long", request: created(object), expected }]);
}
