//! Which external addresses a new Service gets, and when it waits for one.

use serde_json::{Value, json};

use crate::support::external_cases::{
    ASKED, Case, GOLD_IS_LOST, Held, NONE_HELD, NOT_IN_ADMISSION, RECORD, check, given, gold,
};
use crate::support::{
    FakeCluster, balancer, balancer_of, created, external_answer, now, service, updated, with_record, with_spec,
};

const METALLB: &str = "metallb.io/loadBalancerIPs";

/// The answer to a request that concerns no external addresses.
fn nothing() -> Value {
    json!({"accepted": true, "audit_annotations": {"decision": "unchanged", "reason": "the settings have no pool for Services"}})
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
    let mut generated = plain.clone();
    generated["metadata"] = json!({"namespace": "shop", "generateName": "web-"});
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
            expected: now("unchanged").because(NOT_IN_ADMISSION).with(&[]),
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
        Case {
            name: "the first address is held by the Service itself, with a remark",
            request: created(plain.clone()),
            held: Some(&[("10.0.9.14", "shop/web (in progress)")]),
            expected: given(&plain, "edge", "10.0.9.14").with(&[]),
        },
        Case {
            name: "a name to be generated: the first address is held by another such Service",
            request: created(generated.clone()),
            held: Some(&[("10.0.9.14", "shop/ (in progress)")]),
            expected: given(&generated, "edge", "10.0.9.13").with(&[]),
        },
        Case {
            name: "a name to be generated: its record is its own",
            request: created(with_record(generated.clone(), "10.0.9.14")),
            held: Some(&[("10.0.9.14", "shop/ (in progress)")]),
            expected: now("unchanged").pool("edge").addresses("10.0.9.14").because("already recorded").with(&[]),
        },
        Case { name: "without a class", request: created(classless), held: NONE_HELD, expected: nothing() },
        Case { name: "class of another controller", request: created(foreign), held: NONE_HELD, expected: nothing() },
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
            expected: now("unchanged").because("no pool of external addresses of IPv4 matches this Service").with(&[]),
        },
        Case {
            name: "no pool of the family matches",
            request: created(gold(elsewhere(balancer_of(json!({"ipFamilies": ["IPv6"]}), &[])))),
            held: NONE_HELD,
            expected: now("unchanged").because("no pool of external addresses of IPv6 matches this Service").with(&[]),
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
            expected: now("unchanged").pool("edge").because("no address of pool \"edge\" is free").with(&[warning]),
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
        let error = clusterip_core::lookups::LookupError::Failed { resource: "v1/X".into(), detail: "broken".into() };
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
            expected: now("unchanged").because(&waiting).with(&[&waiting]),
        },
        LookUpCase {
            name: "a recorded address",
            request: updated(record.clone(), record.clone()),
            held: NONE_HELD,
            question: "get Namespace",
            expected: now("unchanged").because(&waiting).with(&[&waiting]),
        },
        LookUpCase {
            name: "a recorded address, holders unknown",
            request: updated(record.clone(), record.clone()),
            held: None,
            question: "",
            expected: now("unchanged").addresses("10.0.9.10").because("already recorded").with(&[]),
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
