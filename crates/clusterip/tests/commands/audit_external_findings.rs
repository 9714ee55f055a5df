//! Runs `clusterip audit` as a user does: the findings about external addresses.

use crate::command::Folder;
use crate::command::external_snapshot::{A1, audit, claim, findings, has, heartbeat, node, plain, service, shows};
use serde_json::{Value, json};

struct Case {
    name: &'static str,
    objects: Vec<Value>,
    expected: Vec<&'static str>,
}

#[track_caller]
fn check(test: &str, rows: Vec<Case>) {
    let folder = Folder::new(test);
    let mut wrong = Vec::new();
    for Case { name, objects, expected } in rows {
        let done = audit(&folder, &objects, &["-o", "json"]);
        assert_eq!(done.status, 0, "{name}: {}", done.stderr);
        assert_eq!(done.json()["notes"], json!([]), "{name}");
        let found = findings(&done);
        if found != expected {
            wrong.push(format!("{name}: {found:#?}, expected {expected:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `service` in the namespace of the pool `bank`.
fn in_bank(mut service: Value) -> Value {
    service["metadata"]["namespace"] = json!("bank");
    service
}

/// Fields with an address in `spec.externalIPs`.
fn ips(address: &str) -> Value {
    json!({"spec": {"externalIPs": [address]}})
}

/// These Services, and an agent that holds 10.0.9.10.
fn live(services: Vec<Value>) -> Vec<Value> {
    let agents = [node("a", "True"), heartbeat("a", A1, 0), claim("10.0.9.10", A1)];
    services.into_iter().chain(agents).collect()
}

/// A Service whose address the Node `a` holds, with these objects of its agent.
fn held_by(agents: Vec<Value>) -> Vec<Value> {
    let newest = heartbeat("newest", "newest_agent_0000000000000001", 0);
    [has("web", "10.0.9.10"), node("a", "True"), claim("10.0.9.10", A1), newest].into_iter().chain(agents).collect()
}

#[test]
fn address_that_several_services_have_is_a_finding() {
    check(
        "audit-external-shared",
        vec![
            Case {
                name: "two with the same record",
                objects: live(vec![has("b", "10.0.9.10"), has("a", "10.0.9.10")]),
                expected: vec![
                    "shared-external | - | 10.0.9.10 | lan | Service shop/a: 10.0.9.10 is used by it (record), and \
                     also by Service shop/b (record)",
                    "shared-external | - | 10.0.9.10 | lan | Service shop/b: 10.0.9.10 is used by it (record), and \
                     also by Service shop/a (record)",
                ],
            },
            Case {
                name: "a record and a claim",
                objects: live(vec![has("web", "10.0.9.10"), plain("old", ips("10.0.9.10"))]),
                expected: vec![
                    "shared-external | - | 10.0.9.10 | lan | Service shop/old: 10.0.9.10 is used by it \
                     (spec.externalIPs), and also by Service shop/web (record)",
                    "shared-external | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is used by it (record), and \
                     also by Service shop/old (spec.externalIPs)",
                    "foreign-external | - | 10.0.9.10 | lan | Service shop/old: 10.0.9.10 lies in pool lan \
                     (10.0.9.10-10.0.9.12), and is used by spec.externalIPs: no agent holds it",
                ],
            },
            Case {
                name: "a record and a claim of one Service",
                objects: live(vec![{
                    let mut both = has("web", "10.0.9.10");
                    both["spec"]["loadBalancerIP"] = json!("10.0.9.10");
                    both["metadata"]["annotations"]["metallb.io/loadBalancerIPs"] = json!("10.0.9.10");
                    both
                }]),
                expected: vec![],
            },
        ],
    );
}

#[test]
fn address_that_the_policy_refuses_is_a_finding() {
    check(
        "audit-external-refused",
        vec![
            Case {
                name: "a pool for others",
                objects: live(vec![has("web", "10.0.10.1"), has("ours", "10.0.9.10")]),
                expected: vec![
                    "refused-external | - | 10.0.10.1 | bank | Service shop/web: 10.0.10.1 is recorded, and the policy \
                     refuses it: annotation clusterip-policy/external-addresses: 10.0.10.1 lies in pool \"bank\", \
                     which does not admit this Service: namespaces does not match",
                ],
            },
            Case {
                name: "outside of every pool",
                objects: live(vec![has("web", "10.7.7.7"), has("ours", "10.0.9.10")]),
                expected: vec![
                    "refused-external | - | 10.7.7.7 | - | Service shop/web: 10.7.7.7 is recorded, and the policy \
                     refuses it: annotation clusterip-policy/external-addresses: 10.7.7.7 lies in no pool of external \
                     addresses",
                ],
            },
            Case {
                name: "of the wrong family",
                objects: live(vec![has("web", "fd00::7"), has("ours", "10.0.9.10")]),
                expected: vec![
                    "refused-external | - | fd00::7 | - | Service shop/web: fd00::7 is recorded, and the policy \
                     refuses it: annotation clusterip-policy/external-addresses: fd00::7 is IPv6, which is not a \
                     family of the Service",
                ],
            },
            Case {
                name: "of no class of ours",
                objects: live(vec![
                    {
                        let mut other = has("web", "10.0.9.11");
                        other["spec"]["loadBalancerClass"] = json!("metallb");
                        other
                    },
                    has("ours", "10.0.9.10"),
                ]),
                expected: vec![
                    "refused-external | - | 10.0.9.11 | lan | Service shop/web: 10.0.9.11 is recorded, and the policy \
                     refuses it: it is not one of those that get external addresses: type LoadBalancer with \
                     loadBalancerClass clusterip-policy/external",
                ],
            },
            Case {
                name: "by externalIPs, without",
                objects: live(vec![plain("old", ips("10.0.10.1")), has("ours", "10.0.9.10")]),
                expected: vec![
                    "refused-external | - | 10.0.10.1 | bank | Service shop/old: 10.0.10.1 is claimed, and the policy \
                     refuses it: spec.externalIPs: 10.0.10.1 lies in pool \"bank\", which does not admit this Service: \
                     namespaces does not match",
                ],
            },
        ],
    );
}

#[test]
fn pool_address_that_a_service_uses_by_itself_is_a_finding() {
    let metallb = json!({"metadata": {"annotations": {"metallb.io/loadBalancerIPs": "10.0.9.10"}}, "spec": {"type": "LoadBalancer", "loadBalancerClass": "metallb"}});
    check(
        "audit-external-foreign",
        vec![
            Case {
                name: "claims outside of every pool",
                objects: live(vec![has("web", "10.0.9.10"), plain("old", ips("192.0.2.1"))]),
                expected: vec![],
            },
            Case {
                name: "by externalIPs, with a right to it",
                objects: live(vec![in_bank(plain("old", ips("10.0.10.1"))), has("ours", "10.0.9.10")]),
                expected: vec![
                    "foreign-external | - | 10.0.10.1 | bank | Service bank/old: 10.0.10.1 lies in pool bank \
                     (10.0.10.0/30), and is used by spec.externalIPs: no agent holds it",
                ],
            },
            Case {
                name: "by an annotation of others",
                objects: live(vec![plain("old", metallb), has("ours", "10.0.9.11"), claim("10.0.9.11", A1)]),
                expected: vec![
                    "foreign-external | - | 10.0.9.10 | lan | Service shop/old: 10.0.9.10 lies in pool lan \
                     (10.0.9.10-10.0.9.12), and is used by metallb.io/loadBalancerIPs: no agent holds it",
                    "idle-claim | a | 10.0.9.10 | lan | Node a: 10.0.9.10 is held by it (Lease \
                     clusterip-external-10-0-9-10), but no Service has it",
                ],
            },
            Case {
                name: "by its status alone",
                objects: live(vec![shows(plain("old", json!({})), "10.0.9.11"), has("ours", "10.0.9.10")]),
                expected: vec![
                    "foreign-external | - | 10.0.9.11 | lan | Service shop/old: 10.0.9.11 lies in pool lan \
                     (10.0.9.10-10.0.9.12), and is used by status.loadBalancer.ingress: no agent holds it",
                ],
            },
        ],
    );
}

#[test]
fn service_without_an_address_or_with_another_in_its_status_is_a_finding() {
    let going = json!({"metadata": {"deletionTimestamp": "2026-03-01T10:00:00Z"}});
    check(
        "audit-external-status",
        vec![
            Case {
                name: "held and shown in the status",
                objects: live(vec![shows(has("web", "10.0.9.10"), "10.0.9.10")]),
                expected: vec![],
            },
            Case { name: "nothing shown yet", objects: live(vec![has("web", "10.0.9.10")]), expected: vec![] },
            Case {
                name: "waiting for one",
                objects: live(vec![service("new", json!({})), has("ours", "10.0.9.10")]),
                expected: vec![
                    "no-external | - |  | - | Service shop/new: it has no external address, but should have one",
                ],
            },
            Case {
                name: "another in its status",
                objects: live(vec![shows(has("web", "10.0.9.10"), "10.0.9.12")]),
                expected: vec![
                    "wrong-ingress | - | 10.0.9.12 | lan | Service shop/web: 10.0.9.12 is shown in its status, but it \
                     has recorded 10.0.9.10",
                ],
            },
            Case {
                name: "nothing but its status",
                objects: live(vec![has("ours", "10.0.9.10"), shows(service("new", json!({})), "10.0.9.12")]),
                expected: vec![
                    "no-external | - |  | - | Service shop/new: it has no external address, but should have one",
                    "wrong-ingress | - | 10.0.9.12 | lan | Service shop/new: 10.0.9.12 is shown in its status, but it \
                     has recorded nothing",
                ],
            },
            Case {
                name: "going",
                objects: live(vec![has("ours", "10.0.9.10"), service("new", going)]),
                expected: vec![],
            },
        ],
    );
}

#[test]
fn full_pool_and_claim_without_a_service_are_findings() {
    check(
        "audit-external-pools",
        vec![
            Case {
                name: "a full pool",
                objects: live(vec![
                    in_bank(has("a", "10.0.10.1")),
                    in_bank(has("b", "10.0.10.2")),
                    has("ours", "10.0.9.10"),
                    claim("10.0.10.1", A1),
                    claim("10.0.10.2", A1),
                ]),
                expected: vec![
                    "full-external-pool | - |  | bank | external pool bank (10.0.10.0/30) is full: all 2 addresses are \
                     used",
                ],
            },
            Case {
                name: "a claim without a holder",
                objects: live(vec![]),
                expected: vec![
                    "idle-claim | a | 10.0.9.10 | lan | Node a: 10.0.9.10 is held by it (Lease \
                     clusterip-external-10-0-9-10), but no Service has it",
                ],
            },
        ],
    );
}

#[test]
fn address_that_no_live_agent_holds_is_a_finding() {
    check(
        "audit-external-held",
        vec![
            Case {
                name: "no claim",
                objects: vec![has("web", "10.0.9.10"), node("a", "True"), heartbeat("a", A1, 0)],
                expected: vec!["not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by no node"],
            },
            Case {
                name: "no claim, and no node that may",
                objects: vec![has("web", "10.0.9.10"), node("a", "False"), heartbeat("a", A1, 0)],
                expected: vec![
                    "not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by no node, and no node may \
                     hold it",
                ],
            },
            Case {
                name: "given back",
                objects: vec![
                    has("web", "10.0.9.10"),
                    node("a", "True"),
                    heartbeat("a", A1, 0),
                    claim("10.0.9.10", ""),
                ],
                expected: vec!["not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by no node"],
            },
            Case {
                name: "no heartbeat",
                objects: held_by(vec![]),
                expected: vec![
                    "not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by node a, and its agent has \
                     no heartbeat",
                ],
            },
            Case {
                name: "a heartbeat that was given back",
                objects: held_by(vec![heartbeat("a", "", 0)]),
                expected: vec![
                    "not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by node a, and its agent has \
                     given its heartbeat back",
                ],
            },
            Case {
                name: "a heartbeat of another term",
                objects: held_by(vec![heartbeat("a", "a_agent_00000000000000a2", 0)]),
                expected: vec![
                    "not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by node a, and its agent has \
                     begun a new term since",
                ],
            },
            Case {
                name: "a heartbeat that is too old",
                objects: held_by(vec![heartbeat("a", A1, 21)]),
                expected: vec![
                    "not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by node a, and its agent has \
                     not renewed its heartbeat in time",
                ],
            },
            Case {
                name: "a heartbeat that is just not too old",
                objects: held_by(vec![heartbeat("a", A1, 20)]),
                expected: vec![],
            },
        ],
    );
}
