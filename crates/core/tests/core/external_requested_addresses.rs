//! Which external addresses a new Service gets if it names one itself: in an annotation, in a record or in
//! `spec.loadBalancerIP`.

use crate::support::external_cases::{
    ASKED, Case, Held, NONE_HELD, NOT_IN_ADMISSION, RECORD, check, given, gold, kept, refused,
};
use crate::support::{balancer, balancer_of, created, now};
use serde_json::json;

#[test]
fn requested_address_is_assigned_if_it_is_free_and_in_a_pool_for_the_service() {
    let asking = |address: &str| balancer(&[(ASKED, address)]);
    let both = |asked: &str| balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[(ASKED, asked)]);
    let unknown = |asked: &str| balancer_of(json!({"clusterIP": ""}), &[(ASKED, asked)]);
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
            name: "in a pool for its label",
            request: created(gold(asking("10.0.7.7"))),
            held: NONE_HELD,
            expected: given(&gold(asking("10.0.7.7")), "gold", "10.0.7.7").with(&[]),
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
    ]);
}

#[test]
fn requested_address_that_the_service_can_not_have_is_refused_with_the_reason() {
    let asking = |address: &str| balancer(&[(ASKED, address)]);
    let both = |asked: &str| balancer_of(json!({"ipFamilies": ["IPv4", "IPv6"]}), &[(ASKED, asked)]);
    let held: Held<'_> = Some(&[("10.0.9.10", "other/db")]);
    let asked = |why: &str| refused(&format!("annotation {ASKED}: {why}"));
    check(vec![
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
fn record_of_a_new_service_is_kept_or_refused() {
    let recorded = |address: &str| balancer(&[(RECORD, address)]);
    let held: Held<'_> = Some(&[("10.0.9.10", "other/db")]);
    check(vec![
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
    ]);
}

#[test]
fn load_balancer_ip_of_a_new_service_is_assigned_if_a_pool_has_it() {
    let field = |address: &str| balancer_of(json!({"ipFamilies": ["IPv4"], "loadBalancerIP": address}), &[]);
    let held: Held<'_> = Some(&[("10.0.9.10", "other/db")]);
    check(vec![
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
    ]);
}

#[test]
fn requested_address_is_checked_even_if_the_holders_are_unknown() {
    let asking = |address: &str| balancer(&[(ASKED, address)]);
    let recorded = |address: &str| balancer(&[(RECORD, address)]);
    let asked = |why: &str| refused(&format!("annotation {ASKED}: {why}"));
    check(vec![
        Case {
            name: "holders unknown: free",
            request: created(asking("10.0.9.10")),
            held: None,
            expected: now("unchanged").because(NOT_IN_ADMISSION).with(&[]),
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
            expected: now("unchanged").addresses("10.0.9.10").because("already recorded").with(&[]),
        },
    ]);
}
