//! Runs `clusterip audit` of external addresses as a user does, on snapshots. The whole output for the example is
//! tested in `audit.rs`.

use crate::command::{Done, Folder};
use serde_json::{Value, json};

/// A pool for one namespace, a small pool for all namespaces that only some nodes may hold, and no pool for Services.
const SETTINGS: &str = "
services: {serviceCIDRs: [172.21.0.0/16]}
external:
  pools:
  - {name: bank, cidrs: [10.0.10.0/30], match: {namespaces: [bank]}}
  - {name: lan, cidrs: [10.0.9.10-10.0.9.12], nodes: {matchLabels: {edge: 'yes'}}}
";

const CLASS: &str = "clusterip-policy/external";

fn service(name: &str, more: Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop", "managedFields": [{"manager": "helm"}]},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": CLASS, "clusterIP": "172.21.0.9", "ipFamilies": ["IPv4"]},
    });
    json_patch::merge(&mut service, &more);
    service
}

fn has(name: &str, record: &str) -> Value {
    service(name, json!({"metadata": {"annotations": {"clusterip-policy/external-addresses": record}}}))
}

fn shows(mut service: Value, address: &str) -> Value {
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": address}]}});
    service
}

fn plain(name: &str, more: Value) -> Value {
    let mut service = service(name, json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}}));
    json_patch::merge(&mut service, &more);
    service
}

fn node(name: &str, ready: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"edge": "yes"}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    })
}

fn lease(name: &str, of: &str, note: (&str, &str), spec: Value) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
        "metadata": {"name": name, "namespace": "own", "labels": {"clusterip-policy/lease": of}, "annotations": {note.0: note.1}},
    })
}

/// The heartbeat of an agent, renewed this many seconds before the newest one.
fn heartbeat(node: &str, holder: &str, before: u8) -> Value {
    let renewed = format!("2026-03-01T10:00:{:02}.000000Z", 59 - before);
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 20, "renewTime": renewed});
    lease(&format!("clusterip-agent-{node}"), "agent", ("clusterip-policy/node", node), spec)
}

fn claim(address: &str, holder: &str) -> Value {
    let name = format!("clusterip-external-{}", address.replace('.', "-"));
    lease(&name, "external", ("clusterip-policy/address", address), json!({"holderIdentity": holder}))
}

fn audit(folder: &Folder, objects: &[Value], args: &[&str]) -> Done {
    folder.audit(SETTINGS, objects, args)
}

/// Each finding as its kind, its Node, its addresses, its pool and its message.
fn findings(done: &Done) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let line = |finding: &Value| {
        let addresses: Vec<String> = finding["addresses"].as_array().into_iter().flatten().map(text).collect();
        let [kind, node, pool, message] = ["kind", "node", "pool", "message"].map(|key| text(&finding[key]));
        let message = message.split("; use an address").next().unwrap();
        format!("{kind} | {node} | {} | {pool} | {message}", addresses.join(","))
    };
    done.json()["findings"].as_array().unwrap().iter().map(line).collect()
}

const A1: &str = "a_agent_00000000000000a1";

#[test]
fn external_findings() {
    struct Case {
        name: &'static str,
        objects: Vec<Value>,
        expected: Vec<&'static str>,
    }
    let folder = Folder::new("audit-external-found");
    let in_bank = |mut service: Value| {
        service["metadata"]["namespace"] = json!("bank");
        service
    };
    let ips = |address: &str| json!({"spec": {"externalIPs": [address]}});
    let metallb = json!({"metadata": {"annotations": {"metallb.io/loadBalancerIPs": "10.0.9.10"}}, "spec": {"type": "LoadBalancer", "loadBalancerClass": "metallb"}});
    let going = json!({"metadata": {"deletionTimestamp": "2026-03-01T10:00:00Z"}});
    let live = |services: Vec<Value>| {
        let agents = [node("a", "True"), heartbeat("a", A1, 0), claim("10.0.9.10", A1)];
        services.into_iter().chain(agents).collect::<Vec<_>>()
    };
    let held_by = |agents: Vec<Value>| {
        let newest = heartbeat("newest", "newest_agent_0000000000000001", 0);
        [has("web", "10.0.9.10"), node("a", "True"), claim("10.0.9.10", A1), newest]
            .into_iter()
            .chain(agents)
            .collect::<Vec<_>>()
    };
    let rows = [
        Case {
            name: "all as it should be",
            objects: live(vec![shows(has("web", "10.0.9.10"), "10.0.9.10")]),
            expected: vec![],
        },
        Case { name: "nothing shown yet", objects: live(vec![has("web", "10.0.9.10")]), expected: vec![] },
        Case {
            name: "claims outside of every pool",
            objects: live(vec![has("web", "10.0.9.10"), plain("old", ips("192.0.2.1"))]),
            expected: vec![],
        },
        Case {
            name: "two with the same record",
            objects: live(vec![has("b", "10.0.9.10"), has("a", "10.0.9.10")]),
            expected: vec![
                "shared-external | - | 10.0.9.10 | lan | Service shop/a: 10.0.9.10 is used by it (record), and also \
                 by Service shop/b (record)",
                "shared-external | - | 10.0.9.10 | lan | Service shop/b: 10.0.9.10 is used by it (record), and also \
                 by Service shop/a (record)",
            ],
        },
        Case {
            name: "a record and a claim",
            objects: live(vec![has("web", "10.0.9.10"), plain("old", ips("10.0.9.10"))]),
            expected: vec![
                "shared-external | - | 10.0.9.10 | lan | Service shop/old: 10.0.9.10 is used by it \
                 (spec.externalIPs), and also by Service shop/web (record)",
                "shared-external | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is used by it (record), and also \
                 by Service shop/old (spec.externalIPs)",
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
        Case {
            name: "a pool for others",
            objects: live(vec![has("web", "10.0.10.1"), has("ours", "10.0.9.10")]),
            expected: vec![
                "refused-external | - | 10.0.10.1 | bank | Service shop/web: 10.0.10.1 is recorded, and the policy \
                 refuses it: annotation clusterip-policy/external-addresses: 10.0.10.1 lies in pool \"bank\", which \
                 does not admit this Service: namespaces does not match",
            ],
        },
        Case {
            name: "outside of every pool",
            objects: live(vec![has("web", "10.7.7.7"), has("ours", "10.0.9.10")]),
            expected: vec![
                "refused-external | - | 10.7.7.7 | - | Service shop/web: 10.7.7.7 is recorded, and the policy refuses \
                 it: annotation clusterip-policy/external-addresses: 10.7.7.7 lies in no pool of external addresses",
            ],
        },
        Case {
            name: "of the wrong family",
            objects: live(vec![has("web", "fd00::7"), has("ours", "10.0.9.10")]),
            expected: vec![
                "refused-external | - | fd00::7 | - | Service shop/web: fd00::7 is recorded, and the policy refuses \
                 it: annotation clusterip-policy/external-addresses: fd00::7 is IPv6, which is not a family of the \
                 Service",
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
            name: "by externalIPs, with a right to it",
            objects: live(vec![in_bank(plain("old", ips("10.0.10.1"))), has("ours", "10.0.9.10")]),
            expected: vec![
                "foreign-external | - | 10.0.10.1 | bank | Service bank/old: 10.0.10.1 lies in pool bank \
                 (10.0.10.0/30), and is used by spec.externalIPs: no agent holds it",
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
        Case {
            name: "waiting for one",
            objects: live(vec![service("new", json!({})), has("ours", "10.0.9.10")]),
            expected: vec![
                "no-external | - |  | - | Service shop/new: it has no external address, but should have \
                 one",
            ],
        },
        Case {
            name: "another in its status",
            objects: live(vec![shows(has("web", "10.0.9.10"), "10.0.9.12")]),
            expected: vec![
                "wrong-ingress | - | 10.0.9.12 | lan | Service shop/web: 10.0.9.12 is shown in its status, but it has \
                 recorded 10.0.9.10",
            ],
        },
        Case {
            name: "nothing but its status",
            objects: live(vec![has("ours", "10.0.9.10"), shows(service("new", json!({})), "10.0.9.12")]),
            expected: vec![
                "no-external | - |  | - | Service shop/new: it has no external address, but should have one",
                "wrong-ingress | - | 10.0.9.12 | lan | Service shop/new: 10.0.9.12 is shown in its status, but it has \
                 recorded nothing",
            ],
        },
        Case { name: "going", objects: live(vec![has("ours", "10.0.9.10"), service("new", going)]), expected: vec![] },
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
            objects: vec![has("web", "10.0.9.10"), node("a", "True"), heartbeat("a", A1, 0), claim("10.0.9.10", "")],
            expected: vec!["not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by no node"],
        },
        Case {
            name: "no heartbeat",
            objects: held_by(vec![]),
            expected: vec![
                "not-held | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is held by node a, and its agent has no \
                 heartbeat",
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
    ];
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

#[test]
fn external_pools_and_addresses_are_counted_and_listed() {
    let folder = Folder::new("audit-external-counted");
    let services =
        [has("a", "10.0.9.10"), has("b", "10.0.9.11"), plain("old", json!({"spec": {"externalIPs": ["10.0.10.0"]}}))];
    let leases = [
        node("a", "True"),
        heartbeat("a", A1, 0),
        claim("10.0.9.10", A1),
        claim("10.0.9.11", "b_agent_0000000000000001"),
    ];
    let used = |service: &str, by: &str| json!([{"namespace": "shop", "name": service, "by": by}]);
    let ranges = |held: [Value; 2], holders: [Value; 2]| {
        json!({"count": 2, "pools": [
            {"name": "bank", "ranges": [{
                "range": "10.0.10.0/30", "first": "10.0.10.0", "last": "10.0.10.3", "around": "10.0.10.0/30",
                "counts": {"usable": 2, "used": 0, "claimed": 0, "free": 2, "excluded": 2, "beside": 1, "held": held[0]},
                "kept": [
                    {"first": "10.0.10.0", "last": "10.0.10.0", "why": "excluded"},
                    {"first": "10.0.10.3", "last": "10.0.10.3", "why": "excluded"},
                ],
                "addresses": [{"address": "10.0.10.0", "state": "misplaced", "services": used("old", "spec.externalIPs"), "holder": null}],
            }]},
            {"name": "lan", "ranges": [{
                "range": "10.0.9.10-10.0.9.12", "first": "10.0.9.10", "last": "10.0.9.12", "around": "10.0.9.8/29",
                "counts": {"usable": 3, "used": 2, "claimed": 0, "free": 1, "excluded": 0, "beside": 0, "held": held[1]},
                "kept": [],
                "addresses": [
                    {"address": "10.0.9.10", "state": "used", "services": used("a", "record"), "holder": holders[0]},
                    {"address": "10.0.9.11", "state": "used", "services": used("b", "record"), "holder": holders[1]},
                ],
            }]},
        ]})
    };
    let known = audit(&folder, &[&services[..], &leases].concat(), &["-o", "json"]).json();
    let holders = [json!({"node": "a", "renewed": true}), json!({"node": "b", "renewed": false})];
    assert_eq!(known["external"], ranges([json!(0), json!(1)], holders));
    let unknown = audit(&folder, &services, &["-o", "json"]).json();
    assert_eq!(unknown["external"], ranges([json!(null), json!(null)], [json!(null), json!(null)]), "without Leases");
    assert_eq!(unknown["notes"], json!(["it is unknown which nodes hold external addresses: no Leases were read"]));
    assert!(!unknown.to_string().contains("not-held"), "{unknown}");
    let table = audit(&folder, &services, &[]).stdout;
    let expected = "EXTERNAL POOL  RANGE                USABLE  USED  HELD  CLAIMED  FREE  EXCLUDED  BESIDE  FILL\n";
    assert!(table.starts_with(expected), "{table}");
}

#[test]
fn audit_fails_only_for_the_selected_findings() {
    let folder = Folder::new("audit-external-fails");
    let leases = [node("a", "True"), heartbeat("a", A1, 0)];
    let bank = |name: &str, record: &str| {
        let mut service = has(name, record);
        service["metadata"]["namespace"] = json!("bank");
        vec![service, claim(record, A1)]
    };
    let shown = shows(has("a", "10.0.9.10"), "10.0.9.12");
    let foreign = plain("old", json!({"spec": {"externalIPs": ["10.0.9.10"]}}));
    let rows = [
        ("shared-external", vec![has("a", "10.0.9.10"), has("b", "10.0.9.10"), claim("10.0.9.10", A1)]),
        ("refused-external", vec![has("a", "10.7.7.7")]),
        ("foreign-external", vec![foreign]),
        ("not-held", vec![has("a", "10.0.9.10")]),
        ("no-external", vec![service("a", json!({}))]),
        ("wrong-ingress", vec![shown, claim("10.0.9.10", A1)]),
        ("idle-claim", vec![claim("10.0.9.10", A1)]),
        ("full-external-pool", [bank("a", "10.0.10.1"), bank("b", "10.0.10.2")].concat()),
    ];
    for (kind, objects) in &rows {
        let objects = [&objects[..], &leases].concat();
        for (other, _) in &rows {
            let status = audit(&folder, &objects, &["--fail-on", other]).status;
            assert_eq!(status, i32::from(kind == other), "{kind}, on {other}");
        }
        assert_eq!(audit(&folder, &objects, &["--fail-on", "any"]).status, 1, "{kind}");
    }
}

#[test]
fn no_output_about_external_addresses_without_external_pools() {
    let folder = Folder::new("audit-external-none");
    let some = [has("a", "10.0.9.10"), has("b", "10.0.9.10"), claim("10.0.9.10", A1), service("c", json!({}))];
    let list = json!({"apiVersion": "v1", "kind": "List", "items": some}).to_string();
    folder.write("snapshot.json", list);
    for output in ["table", "json", "html"] {
        let done = folder.run(&["audit", "--snapshot", "snapshot.json", "-o", output]);
        assert_eq!(done.status, 0, "{done:?}");
        assert!(!done.stdout.contains("\"external\":") && !done.stdout.contains("EXTERNAL"), "-o {output}");
    }
}
