//! Which Service may claim an address of an external pool, in any field or annotation.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support;
use crate::support::{
    FakeCluster, Now, allocated, answer_of, balancer_of, created, denied, external_answer, now, service, updated,
    with_record, with_spec,
};
use serde_json::{Value, json};

const DEPRECATED: &str =
    "spec.externalIPs is deprecated (KEP-5707): use type LoadBalancer, loadBalancerClass clusterip-policy/external";
const REMEDY: &str = "use an address of a pool that matches this Service, or get one with type: LoadBalancer and \
     loadBalancerClass: clusterip-policy/external";
const CILIUM: &str = "annotation lbipam.cilium.io/ips";

fn settings() -> Value {
    json!({"external": {"pools": [
        {"name": "edge", "cidrs": ["10.0.9.10-10.0.9.40", "fd00::9:0/120"], "exclude": ["10.0.9.11"], "match": {"namespaces": ["shop"]}},
        {"name": "other", "cidrs": ["10.0.6.0/24"], "match": {"namespaces": ["other"]}},
    ]}})
}

/// Another Service has an address of each family.
fn cluster() -> FakeCluster {
    FakeCluster::default()
        .external("zoo/db", "10.0.9.20")
        .external("other/db", "10.0.9.20")
        .external("shop/web", "10.0.9.21")
        .external("other/db", "fd00::9:20")
}

/// The Service `shop/web` with these fields of its spec.
fn with(fields: Value) -> Value {
    with_spec(service(json!({"clusterIP": "10.96.0.7"})), fields)
}

fn external_ips(addresses: &[&str]) -> Value {
    with(json!({ "externalIPs": addresses }))
}

fn annotated(key: &str, text: &str) -> Value {
    let mut object = with(json!({"type": "LoadBalancer"}));
    object["metadata"]["annotations"][key] = text.into();
    object
}

fn refused(what: &str) -> Now {
    now("denied").denied(403, &format!("Service shop/web: {what}; {REMEDY}"))
}

/// The answer to a request that concerns no address of our pools.
fn nothing(warnings: &[&str]) -> Value {
    let mut answer = now("").with(warnings);
    answer["audit_annotations"].as_object_mut().unwrap().remove("external");
    answer
}

struct Case {
    name: &'static str,
    request: Value,
    expected: Value,
}

/// The answer must be the same if the holders are sent by the host and if they are looked up.
#[track_caller]
fn check(cases: Vec<Case>) {
    let held = [("10.0.9.20", "other/db"), ("10.0.9.21", "shop/web"), ("fd00:0:0::9:20", "other/db")];
    for Case { name, request, expected } in cases {
        let looked_up = external_answer(&request, &settings(), None, &cluster());
        assert_eq!(looked_up, expected, "{name}: looked up");
        assert_eq!(
            external_answer(&request, &settings(), Some(&held), &FakeCluster::default()),
            expected,
            "{name}: sent by the host"
        );
    }
}

#[test]
fn every_field_that_claims_an_address_is_checked() {
    let balancer_ip = |address: &str| with(json!({"type": "LoadBalancer", "loadBalancerIP": address}));
    let not_admitted = "spec.externalIPs: 10.0.6.9 lies in pool \"other\", which does not admit this Service: \
                        namespaces does not match";
    let mut rows = vec![
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
fn record_is_removed_from_services_of_another_class() {
    let removed = |object: &Value| {
        let reason = "not of type LoadBalancer with the class of external addresses";
        now("removed").because(reason).removed_from(object)
    };
    let plain = with_record(with(json!({})), "10.0.9.20");
    let foreign = with_record(with(json!({"type": "LoadBalancer", "loadBalancerClass": "x/y"})), "nonsense");
    let claiming = with_record(external_ips(&["10.0.9.10"]), "10.0.9.20");
    check(vec![
        Case { name: "type ClusterIP", request: created(plain.clone()), expected: removed(&plain).with(&[]) },
        Case { name: "another class", request: created(foreign.clone()), expected: removed(&foreign).with(&[]) },
        Case {
            name: "beside a valid claim",
            request: created(claiming.clone()),
            expected: removed(&claiming).with(&[DEPRECATED]),
        },
    ]);
}

#[test]
fn services_without_a_class_are_handled_with_external_default() {
    struct ClassCase<'a> {
        name: &'static str,
        object: &'a Value,
        is_ours: bool,
    }
    let mut of_all = settings();
    of_all["external"]["default"] = true.into();
    of_all["external"]["loadBalancerClass"] = "example.com/lan".into();
    let classless = balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerClass": null}), &[]);
    let classy = balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerClass": "example.com/lan"}), &[]);
    let foreign = balancer_of(json!({"ipFamilies": ["IPv4"]}), &[]);
    let rows = [
        ClassCase { name: "none", object: &classless, is_ours: true },
        ClassCase { name: "class of the settings", object: &classy, is_ours: true },
        ClassCase { name: "another class", object: &foreign, is_ours: false },
    ];
    for ClassCase { name, object, is_ours } in rows {
        let answer = external_answer(&created(object.clone()), &of_all, Some(&[]), &FakeCluster::default());
        let expected = if is_ours {
            now("recorded").pool("edge").addresses("10.0.9.15").recorded_in(object).with(&[])
        } else {
            nothing(&[])
        };
        assert_eq!(answer, expected, "{name}");
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

#[test]
fn cluster_ip_and_external_address_are_set_together_or_not_at_all() {
    let mut settings = settings();
    settings["services"] =
        json!({"order": "lowest", "pools": [{"name": "all", "cidrs": ["10.96.0.0/24"], "reserved": 1}]});
    let why = support::by("all", "default");
    let answer_to = |object: &Value, cluster: &FakeCluster| external_answer_listing(object, &settings, cluster);
    let object = balancer_of(json!({"clusterIP": "", "ipFamilies": ["IPv4"]}), &[]);

    let mut expected = allocated(&with_record(object.clone(), "10.0.9.15"), &["10.96.0.1"], why, &[]);
    let audit = &mut expected["audit_annotations"];
    audit["external"] = "recorded".into();
    audit["external-pool"] = "edge".into();
    audit["external-addresses"] = "10.0.9.15".into();
    assert_eq!(answer_to(&object, &FakeCluster::default()), expected);

    let claiming = with_spec(object.clone(), json!({"externalIPs": ["10.0.9.20"]}));
    let held = format!("Service shop/web: spec.externalIPs: 10.0.9.20 of pool \"edge\" is held by other/db; {REMEDY}");
    let mut expected = denied(403, &held, why, &[DEPRECATED]);
    expected["audit_annotations"]["external"] = "denied".into();
    assert_eq!(answer_to(&claiming, &FakeCluster::default()), expected);

    // The family follows from the new ClusterIP.
    let unsaid = balancer_of(json!({"clusterIP": ""}), &[]);
    settings["services"]["pools"][0]["cidrs"] = json!(["fd00:96::/120"]);
    let answer = external_answer_listing(&unsaid, &settings, &FakeCluster::default());
    assert_eq!(answer["mutated_object"]["spec"]["clusterIP"], "fd00:96::1");
    assert_eq!(answer["audit_annotations"]["external-addresses"], "fd00::9:9b");

    settings["services"]["pools"][0]["cidrs"] = json!(["10.96.0.0/30"]);
    let full = FakeCluster::default().service("a/a", "10.96.0.1").service("a/b", "10.96.0.2");
    let answer = external_answer_listing(&claiming, &settings, &full);
    assert!(answer["message"].as_str().unwrap().contains("pool \"all\" (10.96.0.0/30) is full"), "{answer}");
    assert_eq!((&answer["audit_annotations"]["external"], &answer["warnings"]), (&Value::Null, &Value::Null));
}

/// The answer to the creation of `object` if the host says that 10.0.9.20 is held. Services may be listed.
fn external_answer_listing(object: &Value, settings: &Value, cluster: &FakeCluster) -> Value {
    let external = json!({"held": [{"address": "10.0.9.20", "by": "other/db"}]});
    let payload = json!({"request": created(object.clone()), "settings": settings, "external": external});
    serde_json::to_value(clusterip_core::validate(&serde_json::to_vec(&payload).unwrap(), cluster)).unwrap()
}

#[test]
fn unreadable_holders_are_refused() {
    struct HoldersCase {
        name: &'static str,
        external: Value,
        mistake: &'static str,
    }
    let rows = [
        HoldersCase {
            name: "not an object",
            external: json!([]),
            mistake: "external: expected an object, found a list",
        },
        HoldersCase {
            name: "held is not a list",
            external: json!({"held": {}}),
            mistake: "external.held: expected a list, found an object",
        },
        HoldersCase {
            name: "a list of texts",
            external: json!({"held": ["10.0.9.20"]}),
            mistake: "external.held[0]: expected an object, found the string \"10.0.9.20\"",
        },
        HoldersCase {
            name: "without an address",
            external: json!({"held": [{"by": "a/b"}]}),
            mistake: "external.held[0]: expected an address and its holder, found an object",
        },
        HoldersCase {
            name: "without a holder",
            external: json!({"held": [{"address": "10.0.9.20"}]}),
            mistake: "external.held[0]: expected an address and its holder, found an object",
        },
        HoldersCase {
            name: "a number",
            external: json!({"held": [{"address": 1, "by": "a/b"}]}),
            mistake: "external.held[0].address: expected a string, found the number 1",
        },
        HoldersCase {
            name: "a network",
            external: json!({"held": [{"address": "10.0.9.0/24", "by": "a/b"}]}),
            mistake: "external.held[0].address: expected an address, found the string \"10.0.9.0/24\"",
        },
    ];
    for HoldersCase { name, external, mistake } in rows {
        let payload = json!({"request": created(with(json!({}))), "settings": settings(), "external": external});
        let answer = clusterip_core::validate(&serde_json::to_vec(&payload).unwrap(), &FakeCluster::default());
        let message = format!("the request can't be read: {mistake}");
        assert_eq!((answer.code, answer.message), (Some(400), Some(message)), "{name}");
    }
}

#[test]
fn first_of_several_holders_counts() {
    let record = balancer_of(json!({"ipFamilies": ["IPv4"]}), &[("clusterip-policy/external-addresses", "10.0.9.20")]);
    let request = updated(record.clone(), record);
    let answer = |held| external_answer(&request, &settings(), Some(held), &FakeCluster::default());
    let kept = answer(&[("10.0.9.20", "shop/web"), ("10.0.9.20", "other/db")]);
    assert_eq!(kept["audit_annotations"]["external"], "left");
    let lost = answer(&[("10.0.9.20", "other/db"), ("10.0.9.20", "shop/web")]);
    assert_eq!(lost["audit_annotations"]["external-addresses"], "10.0.9.15");
}

/// One Service can't use up a pool by claims: those beyond the limit are refused.
#[test]
fn claims_beyond_the_limit_are_refused() {
    let list = |count: u8| (0..count).map(|last| format!("10.0.9.{}", 22 + last)).collect::<Vec<_>>();
    let too_many = |place: &str, address: &str, most: u8| {
        refused(&format!(
            "{place}: {address} is one too many: at most {most} addresses count, in a text of at most 255 characters"
        ))
    };
    let ips = |count: u8| with(json!({ "externalIPs": list(count) }));
    let cilium = |text: &str| annotated("lbipam.cilium.io/ips", text);
    let three = || cilium(&list(3).join(","));
    let long = format!("{}10.0.9.22", " ".repeat(300));
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
            expected: too_many(CILIUM, "10.0.9.22", 2).with(&[]),
        },
        Case {
            name: "an address in no pool, in a text that is too long",
            request: created(cilium(&long.replace("10.0.9", "192.0.2"))),
            expected: nothing(&[]),
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
