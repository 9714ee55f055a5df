//! Which external addresses a Service gets, keeps and loses.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{
    FakeCluster, Now, balancer, balancer_of, created, external_answer, now, service, updated, with_record, with_spec,
};
use serde_json::{Value, json};

const ASKED: &str = "clusterip-policy/external-address";
const RECORD: &str = "clusterip-policy/external-addresses";
const METALLB: &str = "metallb.io/loadBalancerIPs";
const NOT_IN_ADMISSION: &str =
    "external addresses are assigned by the controller of `clusterip serve`, not in admission";
/// The warning to a Service that had an address of the pool `gold` and no longer matches this pool.
const GOLD_IS_LOST: &str = "10.0.7.7 lies in pool \"gold\", which does not admit this Service: serviceSelector does not \
     match: the Service can't have it";

/// A pool for the namespace shop with six addresses minus an excluded one, another one for Services that request its
/// addresses, and pools for others.
fn settings() -> Value {
    json!({"external": {"pools": [
        {"name": "edge", "cidrs": ["10.0.9.8/29", "fd00::9:1-fd00::9:2"], "exclude": ["10.0.9.12"], "match": {"namespaces": ["shop"]}},
        {"name": "spare", "cidrs": ["10.0.8.7/32"], "match": {"namespaceSelector": {"matchLabels": {"team": "a"}}}},
        {"name": "gold", "cidrs": ["10.0.7.7-10.0.7.8"], "match": {"serviceSelector": {"matchLabels": {"tier": "gold"}}}},
        {"name": "other", "cidrs": ["10.0.6.0/24"], "match": {"namespaces": ["other"]}},
    ]}})
}

fn cluster() -> FakeCluster {
    FakeCluster::default().namespace("shop", &[("team", "a")], &[])
}

fn gold(mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({"tier": "gold"});
    object
}

type Held<'a> = Option<&'a [(&'a str, &'a str)]>;
const NONE_HELD: Held<'static> = Some(&[]);

struct Case<'a> {
    name: &'static str,
    request: Value,
    held: Held<'a>,
    expected: Value,
}

#[track_caller]
fn check(cases: Vec<Case<'_>>) {
    for Case { name, request, held, expected } in cases {
        assert_eq!(external_answer(&request, &settings(), held, &cluster()), expected, "{name}");
    }
}

fn given(object: &Value, pool: &str, addresses: &str) -> Now {
    now("recorded").pool(pool).addresses(addresses).recorded_in(object)
}

fn kept(pool: &str, addresses: &str) -> Now {
    now("left").pool(pool).addresses(addresses).because("already recorded")
}

fn refused(mistake: &str) -> Value {
    let message = format!(
        "Service shop/web: {mistake}; use an address of a pool that matches this Service, or get one with type: \
         LoadBalancer and loadBalancerClass: clusterip-policy/external"
    );
    now("denied").denied(403, &message).with(&[])
}

#[test]
fn new_service_gets_one_address_of_each_family() {
    let plain = balancer(&[]);
    let six = balancer_of(json!({"ipFamilies": ["IPv6"]}), &[]);
    let both = balancer_of(json!({"ipFamilies": ["IPv6", "IPv4"], "ipFamilyPolicy": "RequireDualStack"}), &[]);
    let required = balancer_of(json!({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "RequireDualStack"}), &[]);
    let preferred = balancer_of(json!({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "PreferDualStack"}), &[]);
    let unknown = balancer_of(json!({"clusterIP": ""}), &[]);
    let by_address = balancer_of(json!({"clusterIP": "fd00:96::7"}), &[]);
    let classless = with_spec(plain.clone(), json!({"loadBalancerClass": null}));
    let foreign = with_spec(plain.clone(), json!({"loadBalancerClass": "metallb.io/metallb"}));
    check(vec![
        Case {
            name: "IPv4",
            request: created(plain.clone()),
            held: NONE_HELD,
            expected: given(&plain, "edge", "10.0.9.14").with(&[]),
        },
        Case {
            name: "IPv6",
            request: created(six.clone()),
            held: NONE_HELD,
            expected: given(&six, "edge", "fd00::9:1").with(&[]),
        },
        Case {
            name: "both families, IPv6 first",
            request: created(both.clone()),
            held: NONE_HELD,
            expected: given(&both, "edge", "fd00::9:1,10.0.9.14").with(&[]),
        },
        Case {
            name: "RequireDualStack",
            request: created(required.clone()),
            held: NONE_HELD,
            expected: given(&required, "edge", "10.0.9.14,fd00::9:1").with(&[]),
        },
        Case {
            name: "PreferDualStack, families of the cluster unknown",
            request: created(preferred.clone()),
            held: NONE_HELD,
            expected: given(&preferred, "edge", "10.0.9.14").with(&[]),
        },
        Case {
            name: "families of the Service unknown",
            request: created(unknown.clone()),
            held: NONE_HELD,
            expected: given(&unknown, "edge", "10.0.9.14").with(&[]),
        },
        Case {
            name: "family of its ClusterIP",
            request: created(by_address.clone()),
            held: NONE_HELD,
            expected: given(&by_address, "edge", "fd00::9:1").with(&[]),
        },
        Case {
            name: "holders unknown",
            request: created(plain.clone()),
            held: None,
            expected: now("left").because(NOT_IN_ADMISSION).with(&[]),
        },
        Case {
            name: "the first address is held by another Service",
            request: created(plain.clone()),
            held: Some(&[("10.0.9.14", "other/db")]),
            expected: given(&plain, "edge", "10.0.9.13").with(&[]),
        },
        Case {
            name: "the first address is held by the Service itself",
            request: created(plain.clone()),
            held: Some(&[("10.0.9.14", "shop/web")]),
            expected: given(&plain, "edge", "10.0.9.14").with(&[]),
        },
        Case { name: "without a class", request: created(classless), held: NONE_HELD, expected: nothing() },
        Case { name: "class of another controller", request: created(foreign), held: NONE_HELD, expected: nothing() },
    ]);
}

/// The answer to a request that concerns no external addresses.
fn nothing() -> Value {
    json!({"accepted": true, "audit_annotations": {"decision": "left", "reason": "the settings have no pool for Services"}})
}

#[test]
fn requested_address_is_assigned_or_the_request_is_refused() {
    let asking = |address: &str| balancer(&[(ASKED, address)]);
    let recorded = |address: &str| balancer(&[(RECORD, address)]);
    let field = |address: &str| balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerIP": address}), &[]);
    let both = |asked: &str| balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[(ASKED, asked)]);
    let unknown = |asked: &str| balancer_of(json!({"clusterIP": ""}), &[(ASKED, asked)]);
    let held: Held<'_> = Some(&[("10.0.9.10", "other/db")]);
    let asked = |why: &str| refused(&format!("annotation {ASKED}: {why}"));
    check(vec![
        Case {
            name: "free",
            request: created(asking("10.0.9.10")),
            held: NONE_HELD,
            expected: given(&asking("10.0.9.10"), "edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "in another pool that admits the Service",
            request: created(asking("10.0.8.7")),
            held: NONE_HELD,
            expected: given(&asking("10.0.8.7"), "spare", "10.0.8.7").with(&[]),
        },
        Case {
            name: "held by another Service",
            request: created(asking("10.0.9.10")),
            held,
            expected: asked("10.0.9.10 of pool \"edge\" is held by other/db"),
        },
        Case {
            name: "excluded",
            request: created(asking("10.0.9.12")),
            held: NONE_HELD,
            expected: asked("10.0.9.12 is excluded from pool \"edge\""),
        },
        Case {
            name: "a broadcast address",
            request: created(asking("10.0.9.15")),
            held: NONE_HELD,
            expected: asked("10.0.9.15 is the network or broadcast address of a range of pool \"edge\""),
        },
        Case {
            name: "in a pool for other namespaces",
            request: created(asking("10.0.6.6")),
            held: NONE_HELD,
            expected: asked(
                "10.0.6.6 lies in pool \"other\", which does not admit this Service: namespaces does not match",
            ),
        },
        Case {
            name: "in a pool for other Services",
            request: created(asking("10.0.7.7")),
            held: NONE_HELD,
            expected: asked(
                "10.0.7.7 lies in pool \"gold\", which does not admit this Service: serviceSelector does not match",
            ),
        },
        Case {
            name: "in a pool for its label",
            request: created(gold(asking("10.0.7.7"))),
            held: NONE_HELD,
            expected: given(&gold(asking("10.0.7.7")), "gold", "10.0.7.7").with(&[]),
        },
        Case {
            name: "in no pool",
            request: created(asking("192.0.2.1")),
            held: NONE_HELD,
            expected: asked("192.0.2.1 lies in no pool of external addresses"),
        },
        Case {
            name: "not an IP address",
            request: created(asking("router")),
            held: NONE_HELD,
            expected: asked("\"router\" is not an IP address"),
        },
        Case {
            name: "of another family",
            request: created(asking("fd00::9:2")),
            held: NONE_HELD,
            expected: asked("fd00::9:2 is IPv6, which is not a family of the Service"),
        },
        Case {
            name: "two addresses of a family",
            request: created(both("10.0.9.9,10.0.9.10")),
            held: NONE_HELD,
            expected: asked("10.0.9.10 is one too many: a Service has one of each family"),
        },
        Case {
            name: "one address of each family",
            request: created(both("fd00::9:2, 10.0.9.9")),
            held: NONE_HELD,
            expected: given(&both("fd00::9:2, 10.0.9.9"), "edge", "10.0.9.9,fd00::9:2").with(&[]),
        },
        Case {
            name: "one of two families: the other address is of the same pool",
            request: created(both("fd00::9:2")),
            held: NONE_HELD,
            expected: given(&both("fd00::9:2"), "edge", "10.0.9.14,fd00::9:2").with(&[]),
        },
        Case {
            name: "in a pool without the other family",
            request: created(both("10.0.8.7")),
            held: NONE_HELD,
            expected: given(&both("10.0.8.7"), "spare", "10.0.8.7").with(&[]),
        },
        Case {
            name: "family of the requested address",
            request: created(unknown("fd00::9:2")),
            held: NONE_HELD,
            expected: given(&unknown("fd00::9:2"), "edge", "fd00::9:2").with(&[]),
        },
        Case {
            name: "an address of each family for a single-stack Service",
            request: created(unknown("fd00::9:2,10.0.9.9")),
            held: NONE_HELD,
            expected: given(&unknown("fd00::9:2,10.0.9.9"), "edge", "fd00::9:2").with(&[]),
        },
        Case {
            name: "an empty annotation",
            request: created(asking("")),
            held: NONE_HELD,
            expected: given(&asking(""), "edge", "10.0.9.14").with(&[]),
        },
        Case {
            name: "record: kept",
            request: created(recorded("10.0.9.10")),
            held: NONE_HELD,
            expected: kept("edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "record: written in canonical form",
            request: created(recorded("10.0.9.010 ")),
            held: NONE_HELD,
            expected: given(&recorded(""), "edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "record: held by another Service",
            request: created(recorded("10.0.9.10")),
            held,
            expected: refused(&format!("annotation {RECORD}: 10.0.9.10 of pool \"edge\" is held by other/db")),
        },
        Case {
            name: "record: not an IP address",
            request: created(recorded("x")),
            held: NONE_HELD,
            expected: refused(&format!("annotation {RECORD}: \"x\" is not an IP address")),
        },
        Case {
            name: "spec.loadBalancerIP: free",
            request: created(field("10.0.9.10")),
            held: NONE_HELD,
            expected: given(&field("10.0.9.10"), "edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "spec.loadBalancerIP: held by another Service",
            request: created(field("10.0.9.10")),
            held,
            expected: refused("spec.loadBalancerIP: 10.0.9.10 of pool \"edge\" is held by other/db"),
        },
        Case {
            name: "spec.loadBalancerIP: in no pool",
            request: created(field("192.0.2.1")),
            held: NONE_HELD,
            expected: given(&field("192.0.2.1"), "edge", "10.0.9.14")
                .with(&["192.0.2.1 lies in no pool of external addresses: the Service can't have it"]),
        },
        Case {
            name: "holders unknown: free",
            request: created(asking("10.0.9.10")),
            held: None,
            expected: now("left").because(NOT_IN_ADMISSION).with(&[]),
        },
        Case {
            name: "holders unknown: excluded",
            request: created(asking("10.0.9.12")),
            held: None,
            expected: asked("10.0.9.12 is excluded from pool \"edge\""),
        },
        Case {
            name: "holders unknown: recorded",
            request: created(recorded("10.0.9.10")),
            held: None,
            expected: now("left").addresses("10.0.9.10").because("already recorded").with(&[]),
        },
        Case {
            name: "each mistake is named",
            request: created(asking("1, 1, ")),
            held: NONE_HELD,
            expected: refused(&format!(
                "annotation {ASKED}: \"1\" is not an IP address; annotation {ASKED}: \"1\" is not an IP address"
            )),
        },
    ]);
}

#[test]
fn update_keeps_addresses_and_is_never_refused_for_old_claims() {
    let plain = || balancer(&[]);
    let with = |record: &str| balancer(&[(RECORD, record)]);
    let asking = |asked: &str, record: &str| balancer(&[(ASKED, asked), (RECORD, record)]);
    let field = |address: &str, record: &str| {
        balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerIP": address}), &[(RECORD, record)])
    };
    let six_with = |record: &str| balancer_of(json!({"ipFamilies": ["IPv6"]}), &[(RECORD, record)]);
    let unsaid = balancer_of(json!({"clusterIP": ""}), &[]);
    let labelled = |mut object: Value| {
        object["metadata"]["labels"] = json!({"changed": "yes"});
        object
    };
    let cluster_ip = |record: &str| with_spec(with(record), json!({"type": "ClusterIP", "loadBalancerClass": null}));
    let removed = |object: &Value| {
        let reason = "not of type LoadBalancer with the class of external addresses";
        now("removed").because(reason).removed_from(object).with(&[])
    };
    let deleting = |mut object: Value| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object
    };
    let held: Held<'_> = Some(&[("10.0.9.10", "other/db"), ("10.0.9.14", "other/db")]);
    let all: Vec<String> = (9..15).map(|last| format!("10.0.9.{last}")).collect();
    let all: Vec<(&str, &str)> = all.iter().map(|address| (address.as_str(), "other/db")).collect();
    let lost = "10.0.9.10 of pool \"edge\" is held by other/db: the Service can't have it";
    let full = "pool \"edge\" (10.0.9.8/29) is full: all 5 external addresses are used; the Service waits for one";
    let two = balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[(RECORD, "10.0.9.10")]);
    check(vec![
        Case {
            name: "nothing changes",
            request: updated(with("10.0.9.10"), with("10.0.9.10")),
            held: NONE_HELD,
            expected: kept("edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "something else changes",
            request: updated(with("10.0.9.10"), labelled(with("10.0.9.10"))),
            held: NONE_HELD,
            expected: kept("edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "its own record counts as held",
            request: updated(with("10.0.9.10"), with("10.0.9.10")),
            held: Some(&[("10.0.9.10", "shop/web")]),
            expected: kept("edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "replaced without the record",
            request: updated(with("10.0.9.10"), plain()),
            held: NONE_HELD,
            expected: given(&plain(), "edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "replaced without the record, holders unknown",
            request: updated(with("10.0.9.10"), plain()),
            held: None,
            expected: now("recorded").addresses("10.0.9.10").recorded_in(&plain()).with(&[]),
        },
        Case {
            name: "never recorded",
            request: updated(plain(), plain()),
            held: NONE_HELD,
            expected: given(&plain(), "edge", "10.0.9.14").with(&[]),
        },
        Case {
            name: "never recorded, holders unknown",
            request: updated(plain(), plain()),
            held: None,
            expected: now("left").because(NOT_IN_ADMISSION).with(&[]),
        },
        Case {
            name: "the record is changed to a free address",
            request: updated(with("10.0.9.10"), with("10.0.9.11")),
            held: NONE_HELD,
            expected: kept("edge", "10.0.9.11").with(&[]),
        },
        Case {
            name: "the record is changed to an address that is held",
            request: updated(with("10.0.9.11"), with("10.0.9.10")),
            held,
            expected: refused(&format!("annotation {RECORD}: 10.0.9.10 of pool \"edge\" is held by other/db")),
        },
        Case {
            name: "another address is requested",
            request: updated(with("10.0.9.10"), asking("10.0.9.11", "10.0.9.10")),
            held: NONE_HELD,
            expected: given(&asking("10.0.9.11", ""), "edge", "10.0.9.11").with(&[]),
        },
        Case {
            name: "the requested address is removed",
            request: updated(asking("10.0.9.11", "10.0.9.11"), with("10.0.9.11")),
            held: NONE_HELD,
            expected: kept("edge", "10.0.9.11").with(&[]),
        },
        Case {
            name: "the requested address is still held",
            request: updated(asking("10.0.9.10", "10.0.9.11"), labelled(asking("10.0.9.10", "10.0.9.11"))),
            held,
            expected: kept("edge", "10.0.9.11").with(&[lost]),
        },
        Case {
            name: "the recorded address is held by another Service",
            request: updated(with("10.0.9.10"), with("10.0.9.10")),
            held,
            expected: given(&with(""), "edge", "10.0.9.13").with(&[lost]),
        },
        Case {
            name: "the recorded address is held by another Service, holders unknown",
            request: updated(with("10.0.9.10"), with("10.0.9.10")),
            held: None,
            expected: now("left").addresses("10.0.9.10").because("already recorded").with(&[]),
        },
        Case {
            name: "the recorded address is held by another Service, and the pool is full",
            request: updated(with("10.0.9.10"), with("10.0.9.10")),
            held: Some(&all),
            expected: now("removed")
                .pool("edge")
                .because("no address of pool \"edge\" is free")
                .removed_from(&with("10.0.9.10"))
                .with(&[lost, full]),
        },
        Case {
            name: "the pool of the recorded address no longer matches",
            request: updated(gold(with("10.0.7.7")), with("10.0.7.7")),
            held: NONE_HELD,
            expected: given(&with(""), "edge", "10.0.9.14").with(&[GOLD_IS_LOST]),
        },
        Case {
            name: "a family is added",
            request: updated(with("10.0.9.10"), two.clone()),
            held: NONE_HELD,
            expected: given(&two, "edge", "10.0.9.10,fd00::9:1").with(&[]),
        },
        Case {
            name: "a family is removed, and its address with it",
            request: updated(with_record(two.clone(), "10.0.9.10,fd00::9:1"), with("10.0.9.10,fd00::9:1")),
            held: NONE_HELD,
            expected: given(&with(""), "edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "an address of a family that the Service does not have",
            request: updated(two.clone(), with("10.0.9.10,fd00::9:1")),
            held: NONE_HELD,
            expected: refused(&format!("annotation {RECORD}: fd00::9:1 is IPv6, which is not a family of the Service")),
        },
        Case {
            name: "the type changes to ClusterIP",
            request: updated(with("10.0.9.10"), cluster_ip("10.0.9.10")),
            held: NONE_HELD,
            expected: removed(&cluster_ip("10.0.9.10")),
        },
        Case {
            name: "the type changes to ClusterIP, holders unknown",
            request: updated(with("10.0.9.10"), cluster_ip("10.0.9.10")),
            held: None,
            expected: removed(&cluster_ip("10.0.9.10")),
        },
        Case {
            name: "created with a record, but without our class",
            request: created(cluster_ip("10.0.9.10")),
            held: NONE_HELD,
            expected: removed(&cluster_ip("10.0.9.10")),
        },
        Case {
            name: "the type changes to LoadBalancer with our class",
            request: updated(with_spec(plain(), json!({"type": "ClusterIP", "loadBalancerClass": null})), plain()),
            held: NONE_HELD,
            expected: given(&plain(), "edge", "10.0.9.14").with(&[]),
        },
        Case {
            name: "the families follow from the old record",
            request: updated(six_with(""), unsaid.clone()),
            held: NONE_HELD,
            expected: given(&unsaid, "edge", "fd00::9:1").with(&[]),
        },
        Case {
            name: "spec.loadBalancerIP changes",
            request: updated(field("10.0.9.10", "10.0.9.10"), field("10.0.9.11", "10.0.9.10")),
            held: NONE_HELD,
            expected: given(&field("10.0.9.11", ""), "edge", "10.0.9.11").with(&[]),
        },
        Case {
            name: "spec.loadBalancerIP is unchanged, another address is recorded",
            request: updated(field("10.0.9.11", "10.0.9.10"), field("10.0.9.11", "10.0.9.10")),
            held: NONE_HELD,
            expected: kept("edge", "10.0.9.10").with(&[]),
        },
        Case {
            name: "spec.loadBalancerIP is unchanged, nothing is recorded",
            request: updated(field("10.0.9.11", ""), field("10.0.9.11", "")),
            held: NONE_HELD,
            expected: given(&field("10.0.9.11", ""), "edge", "10.0.9.11").with(&[]),
        },
        Case {
            name: "being deleted",
            request: updated(with("10.0.9.10"), deleting(plain())),
            held: NONE_HELD,
            expected: now("left").because("being deleted").with(&[]),
        },
    ]);
}

#[test]
fn service_waits_if_no_address_is_available() {
    let elsewhere = |mut object: Value| {
        object["metadata"]["namespace"] = "far".into();
        object
    };
    let full: Vec<String> = (9..15).map(|last| format!("10.0.9.{last}")).collect();
    let full: Vec<(&str, &str)> = full.iter().map(|address| (address.as_str(), "other/db")).collect();
    let both = balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[]);
    let warning = "pool \"edge\" (10.0.9.8/29) is full: all 5 external addresses are used; the Service waits for one";
    let record = balancer(&[(RECORD, "10.0.7.7")]);
    check(vec![
        Case {
            name: "no pool matches",
            request: created(elsewhere(balancer(&[]))),
            held: NONE_HELD,
            expected: now("left").because("no pool of external addresses of IPv4 matches this Service").with(&[]),
        },
        Case {
            name: "no pool of the family matches",
            request: created(gold(elsewhere(balancer_of(json!({"ipFamilies": ["IPv6"]}), &[])))),
            held: NONE_HELD,
            expected: now("left").because("no pool of external addresses of IPv6 matches this Service").with(&[]),
        },
        Case {
            name: "no pool matches any longer",
            request: updated(gold(elsewhere(record.clone())), elsewhere(record.clone())),
            held: NONE_HELD,
            expected: now("removed")
                .because("no pool of external addresses of IPv4 matches this Service")
                .removed_from(&elsewhere(record))
                .with(&[GOLD_IS_LOST]),
        },
        Case {
            name: "the pool is full",
            request: created(balancer(&[])),
            held: Some(&full),
            expected: now("left").pool("edge").because("no address of pool \"edge\" is free").with(&[warning]),
        },
        Case {
            name: "the pool is full for one family",
            request: created(both.clone()),
            held: Some(&full),
            expected: given(&both, "edge", "fd00::9:1").with(&[warning]),
        },
    ]);
}

#[test]
fn failed_look_up_refuses_only_claims() {
    struct LookUpCase {
        name: &'static str,
        request: Value,
        held: Held<'static>,
        question: &'static str,
        expected: Value,
    }
    let failing = |question: &str| {
        let error = clusterip_core::cluster::LookupError::Failed { resource: "v1/X".into(), detail: "broken".into() };
        FakeCluster::default().failing(question, error)
    };
    let document = |cidr: &str| json!({"external": {"pools": [{"name": "team", "cidrs": [cidr], "match": {"namespaceSelector": {"matchLabels": {"team": "a"}}}}]}});
    let words = "looking up v1/X failed: broken; try again; if it still fails, see the log of the host";
    let denied = now("denied").denied(500, &format!("Service shop/web: {words}"));
    let waiting = format!("no external address is assigned: {words}");
    let plain = balancer(&[]);
    let record = balancer(&[(RECORD, "10.0.9.10")]);
    let rows = [
        LookUpCase {
            name: "a new Service",
            request: created(plain.clone()),
            held: NONE_HELD,
            question: "get Namespace",
            expected: now("left").because(&waiting).with(&[&waiting]),
        },
        LookUpCase {
            name: "a recorded address",
            request: updated(record.clone(), record.clone()),
            held: NONE_HELD,
            question: "get Namespace",
            expected: now("left").because(&waiting).with(&[&waiting]),
        },
        LookUpCase {
            name: "a recorded address, holders unknown",
            request: updated(record.clone(), record.clone()),
            held: None,
            question: "",
            expected: now("left").addresses("10.0.9.10").because("already recorded").with(&[]),
        },
        LookUpCase {
            name: "a requested address",
            request: created(balancer(&[(ASKED, "10.0.9.10")])),
            held: NONE_HELD,
            question: "get Namespace",
            expected: denied.with(&[]),
        },
        LookUpCase {
            name: "a claimed address",
            request: created(service(json!({"clusterIP": "10.96.0.7", "loadBalancerIP": "10.0.9.10"}))),
            held: None,
            question: "get Namespace",
            expected: now("denied").denied(500, &format!("Service shop/web: {words}")).with(&[]),
        },
        LookUpCase {
            name: "a claimed address in no pool",
            request: created(service(json!({"clusterIP": "10.96.0.7", "loadBalancerIP": "10.0.8.10"}))),
            held: None,
            question: "",
            expected: nothing(),
        },
    ];
    for LookUpCase { name, request, held, question, expected } in rows {
        assert_eq!(external_answer(&request, &document("10.0.9.0/24"), held, &failing(question)), expected, "{name}");
    }
    let listing = failing("list Service by").namespace("shop", &[("team", "a")], &[]);
    let request = created(balancer(&[(METALLB, "10.0.9.10")]));
    assert_eq!(
        external_answer(&request, &document("10.0.9.0/24"), None, &listing),
        now("denied").denied(500, &format!("Service shop/web: {words}")).with(&[])
    );
}
