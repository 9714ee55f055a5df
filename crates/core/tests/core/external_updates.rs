//! Which external addresses a Service keeps, gets and loses when it is updated.

use crate::support::external_cases::{
    ASKED, Case, GOLD_IS_LOST, Held, NONE_HELD, NOT_IN_ADMISSION, RECORD, check, given, gold, kept, refused,
};
use crate::support::{balancer, balancer_of, created, now, updated, with_record, with_spec};
use clusterip_core::decision::RecordChange;
use clusterip_core::external::without_pools;
use clusterip_core::request::Request;
use serde_json::{Value, json};

/// `object` with a change that concerns no address.
fn labelled(mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({"changed": "yes"});
    object
}

/// The addresses that another Service holds.
const HELD: Held<'static> = Some(&[("10.0.9.10", "other/db"), ("10.0.9.14", "other/db")]);

/// The warning to a Service whose address 10.0.9.10 is held by another Service.
const LOST: &str = "10.0.9.10 of pool \"edge\" is held by other/db: the Service can't have it";

#[test]
fn update_keeps_or_restores_the_recorded_address() {
    let plain = || balancer(&[]);
    let with = |record: &str| balancer(&[(RECORD, record)]);
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
            expected: now("unchanged").because(NOT_IN_ADMISSION).with(&[]),
        },
    ]);
}

#[test]
fn changed_record_or_request_is_followed() {
    let with = |record: &str| balancer(&[(RECORD, record)]);
    let asking = |asked: &str, record: &str| balancer(&[(ASKED, asked), (RECORD, record)]);
    check(vec![
        Case {
            name: "the record is changed to a free address",
            request: updated(with("10.0.9.10"), with("10.0.9.11")),
            held: NONE_HELD,
            expected: kept("edge", "10.0.9.11").with(&[]),
        },
        Case {
            name: "the record is changed to an address that is held",
            request: updated(with("10.0.9.11"), with("10.0.9.10")),
            held: HELD,
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
            held: HELD,
            expected: kept("edge", "10.0.9.11").with(&[LOST]),
        },
    ]);
}

/// A record with the address of another Service would count when the pools come back.
#[test]
fn new_record_is_not_accepted_while_there_are_no_pools() {
    struct Row {
        name: &'static str,
        request: Value,
        /// What happens to the record, and its addresses.
        expected: Option<(RecordChange, &'static [&'static str])>,
    }
    let (plain, with) = (|| balancer(&[]), |record: &str| balancer(&[(RECORD, record)]));
    let rows = [
        Row {
            name: "created with a record",
            request: created(with("10.0.9.10")),
            expected: Some((RecordChange::Removed, &[])),
        },
        Row {
            name: "a record is added",
            request: updated(plain(), with("10.0.9.10")),
            expected: Some((RecordChange::Removed, &[])),
        },
        Row {
            name: "the record is changed",
            request: updated(with("10.0.9.10"), with("10.0.9.10,10.0.9.11")),
            expected: Some((RecordChange::Recorded, &["10.0.9.10"])),
        },
        Row { name: "the record stays", request: updated(with("10.0.9.10"), with("10.0.9.10")), expected: None },
        Row { name: "the record is removed", request: updated(with("10.0.9.10"), plain()), expected: None },
        Row { name: "a Service without a record", request: created(plain()), expected: None },
    ];
    for Row { name, request, expected } in rows {
        let found = without_pools(&Request::read(&request).unwrap());
        let found = found.map(|external| (external.outcome, external.addresses));
        let expected =
            expected.map(|(outcome, addresses)| (outcome, addresses.iter().map(|it| it.parse().unwrap()).collect()));
        assert_eq!(found, expected, "{name}");
    }
}

/// While a Service is being deleted, its record is not rewritten. So an address behind the one that counts would stay
/// there, and another Service may be given it meanwhile.
#[test]
fn only_addresses_that_counted_as_held_are_old() {
    let deleting = |record: &str| {
        let mut service = balancer(&[(RECORD, record)]);
        service["metadata"]["deletionTimestamp"] = "2026-11-29T00:00:00Z".into();
        service
    };
    let refused = |why: &str| refused(&format!("annotation {RECORD}: {why}"));
    let one_too_many = || refused("10.0.9.10 is one too many: a Service has one of each family");
    let by_other = || refused("10.0.9.10 of pool \"edge\" is held by other/db");
    let stays = || now("unchanged").because("being deleted").with(&[]);
    for (name, old, new, held, expected) in [
        ("unchanged", "10.0.9.9,10.0.9.10", "10.0.9.9,10.0.9.10", HELD, stays()),
        ("another address before the old one", "10.0.9.10", "10.0.9.9,10.0.9.10", NONE_HELD, one_too_many()),
        ("another address in its place", "10.0.9.10", "10.0.9.9", NONE_HELD, stays()),
        ("the second of two, which another Service has", "10.0.9.9,10.0.9.10", "10.0.9.10", HELD, by_other()),
        ("the first of two", "10.0.9.9,10.0.9.10", "10.0.9.9", HELD, stays()),
    ] {
        check(vec![Case { name, request: updated(deleting(old), deleting(new)), held, expected }]);
    }
}

#[test]
fn changed_load_balancer_ip_is_followed_and_an_unchanged_one_is_not() {
    let field = |address: &str, record: &str| {
        balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerIP": address}), &[(RECORD, record)])
    };
    check(vec![
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
    ]);
}

#[test]
fn recorded_address_that_the_service_can_no_longer_have_is_replaced_and_never_refused() {
    let with = |record: &str| balancer(&[(RECORD, record)]);
    let all: Vec<String> = (9..15).map(|last| format!("10.0.9.{last}")).collect();
    let all: Vec<(&str, &str)> = all.iter().map(|address| (address.as_str(), "other/db")).collect();
    let full = "pool \"edge\" (10.0.9.8/29) is full: all 5 external addresses are used; the Service waits for one";
    check(vec![
        Case {
            name: "the recorded address is held by another Service",
            request: updated(with("10.0.9.10"), with("10.0.9.10")),
            held: HELD,
            expected: given(&with(""), "edge", "10.0.9.13").with(&[LOST]),
        },
        Case {
            name: "the recorded address is held by another Service, holders unknown",
            request: updated(with("10.0.9.10"), with("10.0.9.10")),
            held: None,
            expected: now("unchanged").addresses("10.0.9.10").because("already recorded").with(&[]),
        },
        Case {
            name: "the recorded address is held by another Service, and the pool is full",
            request: updated(with("10.0.9.10"), with("10.0.9.10")),
            held: Some(&all),
            expected: now("removed")
                .pool("edge")
                .because("no address of pool \"edge\" is free")
                .removed_from(&with("10.0.9.10"))
                .with(&[LOST, full]),
        },
        Case {
            name: "the pool of the recorded address no longer matches",
            request: updated(gold(with("10.0.7.7")), with("10.0.7.7")),
            held: NONE_HELD,
            expected: given(&with(""), "edge", "10.0.9.14").with(&[GOLD_IS_LOST]),
        },
    ]);
}

#[test]
fn addresses_follow_the_families_of_the_service() {
    let with = |record: &str| balancer(&[(RECORD, record)]);
    let six_with = |record: &str| balancer_of(json!({"ipFamilies": ["IPv6"]}), &[(RECORD, record)]);
    let unsaid = balancer_of(json!({"clusterIP": ""}), &[]);
    let two = balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[(RECORD, "10.0.9.10")]);
    check(vec![
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
            name: "the families follow from the old record",
            request: updated(six_with(""), unsaid.clone()),
            held: NONE_HELD,
            expected: given(&unsaid, "edge", "fd00::9:1").with(&[]),
        },
    ]);
}

#[test]
fn record_is_removed_with_the_type_or_class_of_external_addresses() {
    let plain = || balancer(&[]);
    let with = |record: &str| balancer(&[(RECORD, record)]);
    let cluster_ip = |record: &str| with_spec(with(record), json!({"type": "ClusterIP", "loadBalancerClass": null}));
    let removed = |object: &Value| {
        let reason = "not of type LoadBalancer with the class of external addresses";
        now("removed").because(reason).removed_from(object).with(&[])
    };
    let deleting = |mut object: Value| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object
    };
    check(vec![
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
            name: "being deleted",
            request: updated(with("10.0.9.10"), deleting(plain())),
            held: NONE_HELD,
            expected: now("unchanged").because("being deleted").with(&[]),
        },
    ]);
}
