//! Which external addresses a new Service gets if it names one itself: in an annotation, in a record or in
//! `spec.loadBalancerIP`.

use crate::support::external_cases::{Held, NONE_HELD, NOT_IN_ADMISSION, check, gets, given, gold, kept};
use crate::support::{ASKED, RECORD, balancer, balancer_of, created, now, refused};
use serde_json::{Value, json};

/// The address that another Service holds.
const HELD: Held<'static> = Some(&[("10.0.9.10", "other/db")]);

fn asking(address: &str) -> Value {
    balancer(&[(ASKED, address)])
}

/// A Service of both families that asks for this.
fn both(asked: &str) -> Value {
    balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[(ASKED, asked)])
}

#[test]
fn requested_address_is_assigned_if_it_is_free_and_in_a_pool_for_the_service() {
    let unknown = |asked: &str| balancer_of(json!({"clusterIP": ""}), &[(ASKED, asked)]);
    let rows = vec![
        gets("free", asking("10.0.9.10"), "edge", "10.0.9.10"),
        gets("in another pool that admits the Service", asking("10.0.8.7"), "spare", "10.0.8.7"),
        gets("in a pool for its label", gold(asking("10.0.7.7")), "gold", "10.0.7.7"),
        gets("one address of each family", both("fd00::9:2, 10.0.9.9"), "edge", "10.0.9.9,fd00::9:2"),
        gets("of two families, the other one is of the same pool", both("fd00::9:2"), "edge", "10.0.9.14,fd00::9:2"),
        gets("in a pool without the other family", both("10.0.8.7"), "spare", "10.0.8.7"),
        gets("family of the requested address", unknown("fd00::9:2"), "edge", "fd00::9:2"),
        gets("of each family for a single-stack Service", unknown("fd00::9:2,10.0.9.9"), "edge", "fd00::9:2"),
        gets("an empty annotation", asking(""), "edge", "10.0.9.14"),
    ];
    check(NONE_HELD, rows);
}

#[test]
fn requested_address_that_the_service_can_not_have_is_refused_with_the_reason() {
    let asked = |mistake: &str| refused(&format!("annotation {ASKED}: {mistake}"));
    let not_admitted = "which does not admit this Service";
    for (object, mistake) in [
        (asking("10.0.9.10"), "10.0.9.10 of pool \"edge\" is held by other/db"),
        (asking("10.0.9.12"), "10.0.9.12 is excluded from pool \"edge\""),
        (asking("10.0.9.15"), "10.0.9.15 is the network or broadcast address of a range of pool \"edge\""),
        (asking("10.0.6.6"), &format!("10.0.6.6 lies in pool \"other\", {not_admitted}: namespaces does not match")),
        (
            asking("10.0.7.7"),
            &format!("10.0.7.7 lies in pool \"gold\", {not_admitted}: serviceSelector does not match"),
        ),
        (asking("192.0.2.1"), "192.0.2.1 lies in no pool of external addresses"),
        (asking("router"), "\"router\" is not an IP address"),
        (asking("fd00::9:2"), "fd00::9:2 is IPv6, which is not a family of the Service"),
        (both("10.0.9.9,10.0.9.11"), "10.0.9.11 is one too many: a Service has one of each family"),
        (asking("1, 1, "), &format!("\"1\" is not an IP address; annotation {ASKED}: \"1\" is not an IP address")),
    ] {
        check(HELD, vec![(mistake, created(object), asked(mistake))]);
    }
}

#[test]
fn record_of_a_new_service_is_kept_or_refused() {
    let recorded = |address: &str| created(balancer(&[(RECORD, address)]));
    let mistake = |mistake: &str| refused(&format!("annotation {RECORD}: {mistake}"));
    let canonical = given(&balancer(&[(RECORD, "")]), "edge", "10.0.9.10");
    let rows = vec![
        ("kept", recorded("10.0.9.10"), kept("edge", "10.0.9.10")),
        ("written in canonical form", recorded("10.0.9.010 "), canonical),
        ("not an IP address", recorded("x"), mistake("\"x\" is not an IP address")),
    ];
    check(NONE_HELD, rows);
    check(HELD, vec![("held", recorded("10.0.9.10"), mistake("10.0.9.10 of pool \"edge\" is held by other/db"))]);
}

#[test]
fn load_balancer_ip_of_a_new_service_is_assigned_if_a_pool_has_it() {
    let field = |address: &str| balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerIP": address}), &[]);
    let ignored = "192.0.2.1 lies in no pool of external addresses: the Service can't have it";
    let outside = given(&field("192.0.2.1"), "edge", "10.0.9.14").with(ignored);
    let rows = vec![
        gets("free", field("10.0.9.10"), "edge", "10.0.9.10"),
        ("in no pool", created(field("192.0.2.1")), outside),
    ];
    check(NONE_HELD, rows);
    let held = refused("spec.loadBalancerIP: 10.0.9.10 of pool \"edge\" is held by other/db");
    check(HELD, vec![("held", created(field("10.0.9.10")), held)]);
}

#[test]
fn requested_address_is_checked_even_if_the_holders_are_unknown() {
    let excluded = refused(&format!("annotation {ASKED}: 10.0.9.12 is excluded from pool \"edge\""));
    let recorded = now("unchanged").addresses("10.0.9.10").because("already recorded");
    let rows = vec![
        ("free", created(asking("10.0.9.10")), now("unchanged").because(NOT_IN_ADMISSION)),
        ("excluded", created(asking("10.0.9.12")), excluded),
        ("recorded", created(balancer(&[(RECORD, "10.0.9.10")])), recorded),
    ];
    check(None, rows);
}
