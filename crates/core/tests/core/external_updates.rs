//! Which external addresses a Service keeps, gets and loses when it is updated.

use crate::support::external_cases::{GOLD_IS_LOST, Held, NONE_HELD, NOT_IN_ADMISSION, check, given, gold, kept};
use crate::support::{
    ASKED, Now, RECORD, balancer, balancer_of, created, ips, now, refused, updated, with_record, with_spec,
};
use clusterip_core::decision::RecordChange;
use clusterip_core::external::without_pools;
use clusterip_core::request::Request;
use serde_json::{Value, json};

/// `object` with a change that concerns no address.
fn labelled(mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({"changed": "yes"});
    object
}

/// `object` while it is being deleted.
fn deleted(mut object: Value) -> Value {
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    object
}

/// The addresses that another Service holds.
const HELD: Held<'static> = Some(&[("10.0.9.10", "other/db"), ("10.0.9.14", "other/db")]);

/// The warning to a Service whose address 10.0.9.10 is held by another Service.
const LOST: &str = "10.0.9.10 of pool \"edge\" is held by other/db: the Service can't have it";

fn plain() -> Value {
    balancer(&[])
}

/// A Service with this record.
fn with(record: &str) -> Value {
    balancer(&[(RECORD, record)])
}

/// The refusal of the record for this mistake.
fn mistaken(mistake: &str) -> Now {
    refused(&format!("annotation {RECORD}: {mistake}"))
}

#[test]
fn update_keeps_or_restores_the_recorded_address() {
    let unchanged = || updated(with("10.0.9.10"), with("10.0.9.10"));
    let rows = vec![
        ("nothing changes", unchanged(), kept("edge", "10.0.9.10")),
        ("a label changes", updated(with("10.0.9.10"), labelled(with("10.0.9.10"))), kept("edge", "10.0.9.10")),
        ("replaced", updated(with("10.0.9.10"), plain()), given(&plain(), "edge", "10.0.9.10")),
        ("never recorded", updated(plain(), plain()), given(&plain(), "edge", "10.0.9.14")),
    ];
    check(NONE_HELD, rows);
    check(Some(&[("10.0.9.10", "shop/web")]), vec![("its own", unchanged(), kept("edge", "10.0.9.10"))]);
    let restored = now("recorded").addresses("10.0.9.10").recorded_in(&plain());
    let rows = vec![
        ("replaced, holders unknown", updated(with("10.0.9.10"), plain()), restored),
        ("never recorded", updated(plain(), plain()), now("unchanged").because(NOT_IN_ADMISSION)),
    ];
    check(None, rows);
}

#[test]
fn changed_record_or_request_is_followed() {
    let asking = |asked: &str, record: &str| balancer(&[(ASKED, asked), (RECORD, record)]);
    let requested = updated(with("10.0.9.10"), asking("10.0.9.11", "10.0.9.10"));
    let rows = vec![
        ("to a free address", updated(with("10.0.9.10"), with("10.0.9.11")), kept("edge", "10.0.9.11")),
        ("another address is requested", requested, given(&asking("10.0.9.11", ""), "edge", "10.0.9.11")),
        ("removed", updated(asking("10.0.9.11", "10.0.9.11"), with("10.0.9.11")), kept("edge", "10.0.9.11")),
    ];
    check(NONE_HELD, rows);
    let refused = mistaken("10.0.9.10 of pool \"edge\" is held by other/db");
    let old = || asking("10.0.9.10", "10.0.9.11");
    let rows = vec![
        ("to an address that is held", updated(with("10.0.9.11"), with("10.0.9.10")), refused),
        ("the requested one is still held", updated(old(), labelled(old())), kept("edge", "10.0.9.11").with(LOST)),
    ];
    check(HELD, rows);
}

/// A record with the address of another Service would count when the pools come back.
#[test]
fn new_record_is_not_accepted_while_there_are_no_pools() {
    // What happens to the record, and its addresses.
    let removed = || Some((RecordChange::Removed, ips(&[])));
    let restored = Some((RecordChange::Recorded, ips(&["10.0.9.10"])));
    let rows = [
        ("created with a record", created(with("10.0.9.10")), removed()),
        ("a record is added", updated(plain(), with("10.0.9.10")), removed()),
        ("the record is changed", updated(with("10.0.9.10"), with("10.0.9.10,10.0.9.11")), restored),
        ("the record stays", updated(with("10.0.9.10"), with("10.0.9.10")), None),
        ("the record is removed", updated(with("10.0.9.10"), plain()), None),
        ("a Service without a record", created(plain()), None),
    ];
    for (name, request, expected) in rows {
        let found = without_pools(&Request::read(&request).unwrap());
        let found = found.map(|external| (external.outcome, external.addresses));
        assert_eq!(found, expected, "{name}");
    }
}

/// While a Service is being deleted, its record is not rewritten. So an address behind the one that counts would stay
/// there, and another Service may be given it meanwhile.
#[test]
fn only_addresses_that_counted_as_held_are_old() {
    let deleting = |record: &str| deleted(with(record));
    let one_too_many = || mistaken("10.0.9.10 is one too many: a Service has one of each family");
    let by_other = || mistaken("10.0.9.10 of pool \"edge\" is held by other/db");
    let stays = || now("unchanged").because("being deleted");
    for (name, old, new, held, expected) in [
        ("unchanged", "10.0.9.9,10.0.9.10", "10.0.9.9,10.0.9.10", HELD, stays()),
        ("another address before the old one", "10.0.9.10", "10.0.9.9,10.0.9.10", NONE_HELD, one_too_many()),
        ("another address in its place", "10.0.9.10", "10.0.9.9", NONE_HELD, stays()),
        ("the second of two, which another Service has", "10.0.9.9,10.0.9.10", "10.0.9.10", HELD, by_other()),
        ("the first of two", "10.0.9.9,10.0.9.10", "10.0.9.9", HELD, stays()),
    ] {
        check(held, vec![(name, updated(deleting(old), deleting(new)), expected)]);
    }
}

#[test]
fn changed_load_balancer_ip_is_followed_and_an_unchanged_one_is_not() {
    let field = |address: &str, record: &str| {
        balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerIP": address}), &[(RECORD, record)])
    };
    let given = || given(&field("10.0.9.11", ""), "edge", "10.0.9.11");
    for (old_ip, ip, record, expected) in [
        ("10.0.9.10", "10.0.9.11", "10.0.9.10", given()),
        ("10.0.9.11", "10.0.9.11", "10.0.9.10", kept("edge", "10.0.9.10")),
        ("10.0.9.11", "10.0.9.11", "", given()),
    ] {
        let name = format!("from {old_ip} to {ip}, recorded {record:?}");
        check(NONE_HELD, vec![(&name, updated(field(old_ip, record), field(ip, record)), expected)]);
    }
}

#[test]
fn recorded_address_that_the_service_can_no_longer_have_is_replaced_and_never_refused() {
    let unchanged = || updated(with("10.0.9.10"), with("10.0.9.10"));
    check(HELD, vec![("held", unchanged(), given(&with(""), "edge", "10.0.9.13").with(LOST))]);
    let unknown = now("unchanged").addresses("10.0.9.10").because("already recorded");
    check(None, vec![("holders unknown", unchanged(), unknown)]);
    let all: Vec<String> = (9..15).map(|last| format!("10.0.9.{last}")).collect();
    let all: Vec<(&str, &str)> = all.iter().map(|address| (address.as_str(), "other/db")).collect();
    let full = "pool \"edge\" (10.0.9.8/29) is full: all 5 external addresses are used; the Service waits for one";
    let removed = now("removed").pool("edge").because("no address of pool \"edge\" is free");
    let removed = removed.removed_from(&with("10.0.9.10")).with(LOST).with(full);
    check(Some(&all), vec![("the pool is full", unchanged(), removed)]);
    let unmatched = updated(gold(with("10.0.7.7")), with("10.0.7.7"));
    let replaced = given(&with(""), "edge", "10.0.9.14").with(GOLD_IS_LOST);
    check(NONE_HELD, vec![("its pool no longer matches", unmatched, replaced)]);
}

#[test]
fn addresses_follow_the_families_of_the_service() {
    let six = balancer_of(json!({"ipFamilies": ["IPv6"]}), &[(RECORD, "")]);
    let unsaid = balancer_of(json!({"clusterIP": ""}), &[]);
    let two = balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[(RECORD, "10.0.9.10")]);
    let two_recorded = with_record(two.clone(), "10.0.9.10,fd00::9:1");
    let fewer = updated(two_recorded, with("10.0.9.10,fd00::9:1"));
    let foreign = updated(two.clone(), with("10.0.9.10,fd00::9:1"));
    let rows = vec![
        ("a family is added", updated(with("10.0.9.10"), two.clone()), given(&two, "edge", "10.0.9.10,fd00::9:1")),
        ("a family is removed, and its address with it", fewer, given(&with(""), "edge", "10.0.9.10")),
        ("a new address", foreign, mistaken("fd00::9:1 is IPv6, which is not a family of the Service")),
        ("families of the old record", updated(six, unsaid.clone()), given(&unsaid, "edge", "fd00::9:1")),
    ];
    check(NONE_HELD, rows);
}

#[test]
fn record_is_removed_with_the_type_or_class_of_external_addresses() {
    let cluster_ip = |object: Value| with_spec(object, json!({"type": "ClusterIP", "loadBalancerClass": null}));
    let other = cluster_ip(with("10.0.9.10"));
    let removed = || {
        let reason = "not of type LoadBalancer with the class of external addresses";
        now("removed").because(reason).removed_from(&other)
    };
    let rows = vec![
        ("the type changes to ClusterIP", updated(with("10.0.9.10"), other.clone()), removed()),
        ("created with a record, but without our class", created(other.clone()), removed()),
        ("to our class", updated(cluster_ip(plain()), plain()), given(&plain(), "edge", "10.0.9.14")),
        ("deleted", updated(with("10.0.9.10"), deleted(plain())), now("unchanged").because("being deleted")),
    ];
    check(NONE_HELD, rows);
    check(None, vec![("holders unknown", updated(with("10.0.9.10"), other.clone()), removed())]);
}
