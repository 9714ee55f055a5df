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

#[track_caller]
fn check(rows: Vec<(&str, Value, Held<'_>, Value)>) {
    for (name, request, held, expected) in rows {
        assert_eq!(external_answer(&request, &settings(), held, &cluster()), expected, "{name}");
    }
}

fn given(object: &Value, pool: &str, addresses: &str) -> Now {
    now("recorded").pool(pool).addresses(addresses).recorded_in(object)
}

fn kept(pool: &str, addresses: &str) -> Now {
    now("left").pool(pool).addresses(addresses).because("already recorded")
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
        ("IPv4", created(plain.clone()), NONE_HELD, given(&plain, "edge", "10.0.9.14").with(&[])),
        ("IPv6", created(six.clone()), NONE_HELD, given(&six, "edge", "fd00::9:1").with(&[])),
        ("both, IPv6 first", created(both.clone()), NONE_HELD, given(&both, "edge", "fd00::9:1,10.0.9.14").with(&[])),
        (
            "both required",
            created(required.clone()),
            NONE_HELD,
            given(&required, "edge", "10.0.9.14,fd00::9:1").with(&[]),
        ),
        (
            "both preferred, in an unknown cluster",
            created(preferred.clone()),
            NONE_HELD,
            given(&preferred, "edge", "10.0.9.14").with(&[]),
        ),
        ("families unknown", created(unknown.clone()), NONE_HELD, given(&unknown, "edge", "10.0.9.14").with(&[])),
        (
            "family of its ClusterIP",
            created(by_address.clone()),
            NONE_HELD,
            given(&by_address, "edge", "fd00::9:1").with(&[]),
        ),
        ("holders unknown", created(plain.clone()), None, now("left").because(NOT_IN_ADMISSION).with(&[])),
        (
            "the first is held",
            created(plain.clone()),
            Some(&[("10.0.9.14", "other/db")]),
            given(&plain, "edge", "10.0.9.13").with(&[]),
        ),
        (
            "it is held for itself",
            created(plain.clone()),
            Some(&[("10.0.9.14", "shop/web")]),
            given(&plain, "edge", "10.0.9.14").with(&[]),
        ),
        ("without a class", created(classless), NONE_HELD, nothing()),
        ("another's class", created(foreign), NONE_HELD, nothing()),
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
    let refused = |what: &str| {
        let message = format!(
            "Service shop/web: {what}; use an address of a pool that matches this Service, or get one with type: \
             LoadBalancer and loadBalancerClass: clusterip-policy/external"
        );
        now("denied").denied(403, &message).with(&[])
    };
    let asked = |why: &str| refused(&format!("annotation {ASKED}: {why}"));
    let mut rows = vec![
        ("free", asking("10.0.9.10"), NONE_HELD, given(&asking("10.0.9.10"), "edge", "10.0.9.10").with(&[])),
        (
            "of another pool that is for it",
            asking("10.0.8.7"),
            NONE_HELD,
            given(&asking("10.0.8.7"), "spare", "10.0.8.7").with(&[]),
        ),
        ("held", asking("10.0.9.10"), held, asked("10.0.9.10 of pool \"edge\" is held by other/db")),
        ("excluded", asking("10.0.9.12"), NONE_HELD, asked("10.0.9.12 is excluded from pool \"edge\"")),
        (
            "a broadcast address",
            asking("10.0.9.15"),
            NONE_HELD,
            asked("10.0.9.15 is the network or broadcast address of a range of pool \"edge\""),
        ),
        (
            "of a pool for other namespaces",
            asking("10.0.6.6"),
            NONE_HELD,
            asked("10.0.6.6 lies in pool \"other\", which does not admit this Service: namespaces does not match"),
        ),
        (
            "of a pool for other Services",
            asking("10.0.7.7"),
            NONE_HELD,
            asked("10.0.7.7 lies in pool \"gold\", which does not admit this Service: serviceSelector does not match"),
        ),
        (
            "of a pool for its label",
            gold(asking("10.0.7.7")),
            NONE_HELD,
            given(&gold(asking("10.0.7.7")), "gold", "10.0.7.7").with(&[]),
        ),
        ("outside", asking("192.0.2.1"), NONE_HELD, asked("192.0.2.1 lies in no pool of external addresses")),
        ("no address", asking("router"), NONE_HELD, asked("\"router\" is not an IP address")),
        (
            "of another family",
            asking("fd00::9:2"),
            NONE_HELD,
            asked("fd00::9:2 is IPv6, which is not a family of the Service"),
        ),
        (
            "two of a family",
            both("10.0.9.9,10.0.9.10"),
            NONE_HELD,
            asked("10.0.9.10 is one too many: a Service has one of each family"),
        ),
        (
            "one of each family",
            both("fd00::9:2, 10.0.9.9"),
            NONE_HELD,
            given(&both("fd00::9:2, 10.0.9.9"), "edge", "10.0.9.9,fd00::9:2").with(&[]),
        ),
        (
            "one of two families: the other of the same pool",
            both("fd00::9:2"),
            NONE_HELD,
            given(&both("fd00::9:2"), "edge", "10.0.9.14,fd00::9:2").with(&[]),
        ),
        (
            "of a pool without the other family",
            both("10.0.8.7"),
            NONE_HELD,
            given(&both("10.0.8.7"), "spare", "10.0.8.7").with(&[]),
        ),
        (
            "family of the requested address",
            unknown("fd00::9:2"),
            NONE_HELD,
            given(&unknown("fd00::9:2"), "edge", "fd00::9:2").with(&[]),
        ),
        (
            "both families, and it will be of one",
            unknown("fd00::9:2,10.0.9.9"),
            NONE_HELD,
            given(&unknown("fd00::9:2,10.0.9.9"), "edge", "fd00::9:2").with(&[]),
        ),
        ("empty", asking(""), NONE_HELD, given(&asking(""), "edge", "10.0.9.14").with(&[])),
        ("by its record: restored", recorded("10.0.9.10"), NONE_HELD, kept("edge", "10.0.9.10").with(&[])),
        (
            "by its record, in other words",
            recorded("10.0.9.010 "),
            NONE_HELD,
            given(&recorded(""), "edge", "10.0.9.10").with(&[]),
        ),
        (
            "by its record, and held",
            recorded("10.0.9.10"),
            held,
            refused(&format!("annotation {RECORD}: 10.0.9.10 of pool \"edge\" is held by other/db")),
        ),
        (
            "by its record, and no address",
            recorded("x"),
            NONE_HELD,
            refused(&format!("annotation {RECORD}: \"x\" is not an IP address")),
        ),
        ("by the field", field("10.0.9.10"), NONE_HELD, given(&field("10.0.9.10"), "edge", "10.0.9.10").with(&[])),
        (
            "by the field, and held",
            field("10.0.9.10"),
            held,
            refused("spec.loadBalancerIP: 10.0.9.10 of pool \"edge\" is held by other/db"),
        ),
        (
            "by the field, outside",
            field("192.0.2.1"),
            NONE_HELD,
            given(&field("192.0.2.1"), "edge", "10.0.9.14")
                .with(&["192.0.2.1 lies in no pool of external addresses: the Service can't have it"]),
        ),
        ("holders unknown: free", asking("10.0.9.10"), None, now("left").because(NOT_IN_ADMISSION).with(&[])),
        ("holders unknown: excluded", asking("10.0.9.12"), None, asked("10.0.9.12 is excluded from pool \"edge\"")),
        (
            "holders unknown: its record",
            recorded("10.0.9.10"),
            None,
            now("left").addresses("10.0.9.10").because("already recorded").with(&[]),
        ),
    ];
    let many = asking(&"1, ".repeat(2));
    rows.push((
        "each mistake is named",
        many,
        NONE_HELD,
        refused(&format!(
            "annotation {ASKED}: \"1\" is not an IP address; annotation {ASKED}: \"1\" is not an IP address"
        )),
    ));
    check(rows.into_iter().map(|(name, object, held, expected)| (name, created(object), held, expected)).collect());
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
        ("nothing changes", updated(with("10.0.9.10"), with("10.0.9.10")), NONE_HELD, kept("edge", "10.0.9.10").with(&[])),
        ("something else changes", updated(with("10.0.9.10"), labelled(with("10.0.9.10"))), NONE_HELD, kept("edge", "10.0.9.10").with(&[])),
        ("its own record counts as held", updated(with("10.0.9.10"), with("10.0.9.10")), Some(&[("10.0.9.10", "shop/web")]), kept("edge", "10.0.9.10").with(&[])),
        ("replaced without the record", updated(with("10.0.9.10"), plain()), NONE_HELD, given(&plain(), "edge", "10.0.9.10").with(&[])),
        ("replaced without the record, holders unknown", updated(with("10.0.9.10"), plain()), None, now("recorded").addresses("10.0.9.10").recorded_in(&plain()).with(&[])),
        ("never recorded", updated(plain(), plain()), NONE_HELD, given(&plain(), "edge", "10.0.9.14").with(&[])),
        ("never recorded, holders unknown", updated(plain(), plain()), None, now("left").because(NOT_IN_ADMISSION).with(&[])),
        ("the record is changed to one that is free", updated(with("10.0.9.10"), with("10.0.9.11")), NONE_HELD, kept("edge", "10.0.9.11").with(&[])),
        (
            "the record is changed to one that is held",
            updated(with("10.0.9.11"), with("10.0.9.10")),
            held,
            now("denied").denied(403, &format!("Service shop/web: annotation {RECORD}: 10.0.9.10 of pool \"edge\" is held by other/db; use an address of a pool that matches this Service, or get one with type: LoadBalancer and loadBalancerClass: clusterip-policy/external")).with(&[]),
        ),
        ("another is requested", updated(with("10.0.9.10"), asking("10.0.9.11", "10.0.9.10")), NONE_HELD, given(&asking("10.0.9.11", ""), "edge", "10.0.9.11").with(&[])),
        ("request removed", updated(asking("10.0.9.11", "10.0.9.11"), with("10.0.9.11")), NONE_HELD, kept("edge", "10.0.9.11").with(&[])),
        (
            "requested address is still held",
            updated(asking("10.0.9.10", "10.0.9.11"), labelled(asking("10.0.9.10", "10.0.9.11"))),
            held,
            kept("edge", "10.0.9.11").with(&[lost]),
        ),
        ("its record is held by another", updated(with("10.0.9.10"), with("10.0.9.10")), held, given(&with(""), "edge", "10.0.9.13").with(&[lost])),
        (
            "its record is held by another Service, holders unknown",
            updated(with("10.0.9.10"), with("10.0.9.10")),
            None,
            now("left").addresses("10.0.9.10").because("already recorded").with(&[]),
        ),
        (
            "its record is held by another, and the pool full",
            updated(with("10.0.9.10"), with("10.0.9.10")),
            Some(&all),
            now("removed").pool("edge").because("no address of pool \"edge\" is free").removed_from(&with("10.0.9.10")).with(&[lost, full]),
        ),
        (
            "it is in another's pool by now",
            updated(gold(with("10.0.7.7")), with("10.0.7.7")),
            NONE_HELD,
            given(&with(""), "edge", "10.0.9.14").with(&["10.0.7.7 lies in pool \"gold\", which does not admit this Service: serviceSelector does not match: the Service can't have it"]),
        ),
        ("a second family", updated(with("10.0.9.10"), two.clone()), NONE_HELD, given(&two, "edge", "10.0.9.10,fd00::9:1").with(&[])),
        (
            "a family less, its address goes",
            updated(with_record(two.clone(), "10.0.9.10,fd00::9:1"), with("10.0.9.10,fd00::9:1")),
            NONE_HELD,
            given(&with(""), "edge", "10.0.9.10").with(&[]),
        ),
        ("an address of a family that the Service does not have", updated(two.clone(), with("10.0.9.10,fd00::9:1")), NONE_HELD, now("denied").denied(403, &format!("Service shop/web: annotation {RECORD}: fd00::9:1 is IPv6, which is not a family of the Service; use an address of a pool that matches this Service, or get one with type: LoadBalancer and loadBalancerClass: clusterip-policy/external")).with(&[])),
        ("class changed", updated(with("10.0.9.10"), cluster_ip("10.0.9.10")), NONE_HELD, removed(&cluster_ip("10.0.9.10"))),
        ("class changed, holders unknown", updated(with("10.0.9.10"), cluster_ip("10.0.9.10")), None, removed(&cluster_ip("10.0.9.10"))),
        ("never of our class", created(cluster_ip("10.0.9.10")), NONE_HELD, removed(&cluster_ip("10.0.9.10"))),
        ("class added", updated(with_spec(plain(), json!({"type": "ClusterIP", "loadBalancerClass": null})), plain()), NONE_HELD, given(&plain(), "edge", "10.0.9.14").with(&[])),
        (
            "its families are told by what it was",
            updated(six_with(""), unsaid.clone()),
            NONE_HELD,
            given(&unsaid, "edge", "fd00::9:1").with(&[]),
        ),
        (
            "another by the field",
            updated(field("10.0.9.10", "10.0.9.10"), field("10.0.9.11", "10.0.9.10")),
            NONE_HELD,
            given(&field("10.0.9.11", ""), "edge", "10.0.9.11").with(&[]),
        ),
        (
            "the field is as it was, and so is the record",
            updated(field("10.0.9.11", "10.0.9.10"), field("10.0.9.11", "10.0.9.10")),
            NONE_HELD,
            kept("edge", "10.0.9.10").with(&[]),
        ),
        (
            "the field is as it was, and nothing is recorded",
            updated(field("10.0.9.11", ""), field("10.0.9.11", "")),
            NONE_HELD,
            given(&field("10.0.9.11", ""), "edge", "10.0.9.11").with(&[]),
        ),
        ("being deleted", updated(with("10.0.9.10"), deleting(plain())), NONE_HELD, now("left").because("being deleted").with(&[])),
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
        ("no pool", created(elsewhere(balancer(&[]))), NONE_HELD, now("left").because("no pool of external addresses of IPv4 matches this Service").with(&[])),
        ("no pool of its family", created(gold(elsewhere(balancer_of(json!({"ipFamilies": ["IPv6"]}), &[])))), NONE_HELD, now("left").because("no pool of external addresses of IPv6 matches this Service").with(&[])),
        (
            "no pool any more",
            updated(gold(elsewhere(record.clone())), elsewhere(record.clone())),
            NONE_HELD,
            now("removed").because("no pool of external addresses of IPv4 matches this Service").removed_from(&elsewhere(record)).with(&["10.0.7.7 lies in pool \"gold\", which does not admit this Service: serviceSelector does not match: the Service can't have it"]),
        ),
        ("full", created(balancer(&[])), Some(&full), now("left").pool("edge").because("no address of pool \"edge\" is free").with(&[warning])),
        ("one family is full", created(both.clone()), Some(&full), given(&both, "edge", "fd00::9:1").with(&[warning])),
    ]);
}

#[test]
fn failed_look_up_refuses_only_claims() {
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
        ("given", created(plain.clone()), NONE_HELD, "get Namespace", now("left").because(&waiting).with(&[&waiting])),
        (
            "kept",
            updated(record.clone(), record.clone()),
            NONE_HELD,
            "get Namespace",
            now("left").because(&waiting).with(&[&waiting]),
        ),
        (
            "record kept, holders unknown",
            updated(record.clone(), record.clone()),
            None,
            "",
            now("left").addresses("10.0.9.10").because("already recorded").with(&[]),
        ),
        ("asked for", created(balancer(&[(ASKED, "10.0.9.10")])), NONE_HELD, "get Namespace", denied.with(&[])),
        (
            "claimed",
            created(service(json!({"clusterIP": "10.96.0.7", "loadBalancerIP": "10.0.9.10"}))),
            None,
            "get Namespace",
            now("denied").denied(500, &format!("Service shop/web: {words}")).with(&[]),
        ),
        (
            "claimed outside",
            created(service(json!({"clusterIP": "10.96.0.7", "loadBalancerIP": "10.0.8.10"}))),
            None,
            "",
            nothing(),
        ),
    ];
    for (name, request, held, question, expected) in rows {
        assert_eq!(external_answer(&request, &document("10.0.9.0/24"), held, &failing(question)), expected, "{name}");
    }
    let listing = failing("list Service by").namespace("shop", &[("team", "a")], &[]);
    let request = created(balancer(&[(METALLB, "10.0.9.10")]));
    assert_eq!(
        external_answer(&request, &document("10.0.9.0/24"), None, &listing),
        now("denied").denied(500, &format!("Service shop/web: {words}")).with(&[])
    );
}
