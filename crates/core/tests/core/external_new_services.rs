//! Which external addresses a new Service gets, and when it waits for one.

use serde_json::{Value, json};

use crate::support::external_cases::{GOLD_IS_LOST, NONE_HELD, NOT_IN_ADMISSION, check, gets, given, gold, kept};
use crate::support::{
    ASKED, FakeCluster, RECORD, balancer, balancer_of, created, external_answer, nothing, now, service, updated,
    with_record, with_spec,
};

#[test]
fn new_service_gets_one_address_of_each_family() {
    let plain = || balancer(&[]);
    let of =
        |families: Value, policy: &str| balancer_of(json!({"ipFamilies": families, "ipFamilyPolicy": policy}), &[]);
    let at = |address: &str| balancer_of(json!({ "clusterIP": address }), &[]);
    let class = |class: Value| created(with_spec(plain(), json!({ "loadBalancerClass": class })));
    let rows = vec![
        gets("IPv4", plain(), "edge", "10.0.9.14"),
        gets("IPv6", of(json!(["IPv6"]), "SingleStack"), "edge", "fd00::9:1"),
        gets("IPv6 first", of(json!(["IPv6", "IPv4"]), "RequireDualStack"), "edge", "fd00::9:1,10.0.9.14"),
        gets("RequireDualStack", of(json!(["IPv4"]), "RequireDualStack"), "edge", "10.0.9.14,fd00::9:1"),
        gets("families of the cluster unknown", of(json!(["IPv4"]), "PreferDualStack"), "edge", "10.0.9.14"),
        gets("families of the Service unknown", at(""), "edge", "10.0.9.14"),
        gets("family of its ClusterIP", at("fd00:96::7"), "edge", "fd00::9:1"),
        ("without a class", class(Value::Null), nothing()),
        ("class of another controller", class(json!("metallb.io/metallb")), nothing()),
    ];
    check(NONE_HELD, rows);
    check(None, vec![("holders unknown", created(plain()), now("unchanged").because(NOT_IN_ADMISSION))]);
}

#[test]
fn address_of_another_service_is_not_assigned() {
    let plain = || balancer(&[]);
    for (by, address) in [("other/db", "10.0.9.13"), ("shop/web", "10.0.9.14"), ("shop/web (in progress)", "10.0.9.14")]
    {
        check(Some(&[("10.0.9.14", by)]), vec![gets(by, plain(), "edge", address)]);
    }
    // The other Service has no name yet, either.
    let mut generated = plain();
    generated["metadata"] = json!({"namespace": "shop", "generateName": "web-"});
    let recorded = created(with_record(generated.clone(), "10.0.9.14"));
    let rows = vec![
        gets("a name to be generated", generated, "edge", "10.0.9.13"),
        ("its record is its own", recorded, kept("edge", "10.0.9.14")),
    ];
    check(Some(&[("10.0.9.14", "shop/ (in progress)")]), rows);
}

#[test]
fn service_waits_if_no_address_is_available() {
    let elsewhere = |mut object: Value| {
        object["metadata"]["namespace"] = "far".into();
        object
    };
    let none_of = |family: &str| format!("no pool of external addresses of {family} matches this Service");
    let six = balancer_of(json!({"ipFamilies": ["IPv6"]}), &[]);
    let record = balancer(&[(RECORD, "10.0.7.7")]);
    let removed = now("removed").because(&none_of("IPv4")).removed_from(&elsewhere(record.clone())).with(GOLD_IS_LOST);
    let lost = updated(gold(elsewhere(record.clone())), elsewhere(record));
    let rows = vec![
        ("no pool matches", created(elsewhere(balancer(&[]))), now("unchanged").because(&none_of("IPv4"))),
        ("no pool of the family matches", created(gold(elsewhere(six))), now("unchanged").because(&none_of("IPv6"))),
        ("no pool matches any longer", lost, removed),
    ];
    check(NONE_HELD, rows);
    let full: Vec<String> = (9..15).map(|last| format!("10.0.9.{last}")).collect();
    let full: Vec<(&str, &str)> = full.iter().map(|address| (address.as_str(), "other/db")).collect();
    let both = balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[]);
    let warning = "pool \"edge\" (10.0.9.8/29) is full: all 5 external addresses are used; the Service waits for one";
    let waiting = now("unchanged").pool("edge").because("no address of pool \"edge\" is free").with(warning);
    let one = given(&both, "edge", "fd00::9:1").with(warning);
    check(Some(&full), vec![("full", created(balancer(&[])), waiting), ("full for one family", created(both), one)]);
}

#[test]
fn failed_look_up_refuses_only_claims() {
    let document = json!({"external": {"pools": [
        {"name": "team", "cidrs": ["10.0.9.0/24"], "match": {"namespaceSelector": {"matchLabels": {"team": "a"}}}},
    ]}});
    let failing = |question: &str| {
        let error = clusterip_core::lookups::LookupError::Failed { resource: "v1/X".into(), detail: "broken".into() };
        FakeCluster::default().failing(question, error)
    };
    let words = "looking up v1/X failed: broken; try again; if it still fails, see the log of the host";
    let denied = || now("denied").denied(500, &format!("Service shop/web: {words}"));
    let waiting = format!("no external address is assigned: {words}");
    let waiting = || now("unchanged").because(&waiting).with(&waiting);
    let record = balancer(&[(RECORD, "10.0.9.10")]);
    let claiming = |address: &str| created(service(json!({"clusterIP": "10.96.0.7", "loadBalancerIP": address})));
    let kept = now("unchanged").addresses("10.0.9.10").because("already recorded");
    let rows = [
        (NONE_HELD, "get Namespace", created(balancer(&[])), waiting()),
        (NONE_HELD, "get Namespace", updated(record.clone(), record.clone()), waiting()),
        (NONE_HELD, "get Namespace", created(balancer(&[(ASKED, "10.0.9.10")])), denied()),
        (None, "get Namespace", claiming("10.0.9.10"), denied()),
        // These need no look-up.
        (None, "", updated(record.clone(), record), kept),
        (None, "", claiming("10.0.8.10"), nothing()),
    ];
    for (held, question, request, expected) in rows {
        let answer = external_answer(&request, &document, held, &failing(question));
        assert_eq!(answer, Value::from(expected), "{question}, {request}");
    }
    let listing = failing("list Service by").namespace("shop", &[("team", "a")], &[]);
    let request = created(balancer(&[("metallb.io/loadBalancerIPs", "10.0.9.10")]));
    assert_eq!(external_answer(&request, &document, None, &listing), Value::from(denied()));
}
