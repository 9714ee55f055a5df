//! Runs `clusterip audit` of external addresses as a user does, on snapshots. The whole output for the example is
//! tested in `audit.rs`.

use crate::command::Folder;
use crate::command::external_snapshot::{A1, SETTINGS, audit, claim, has, heartbeat, node, plain, service, shows};
use serde_json::{Value, json};

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
                "counts": {"usable": 2, "used": 0, "inFlight": 0, "free": 2, "excluded": 2, "usedAnyway": 1, "held": held[0]},
                "withheld": [
                    {"first": "10.0.10.0", "last": "10.0.10.0", "why": "excluded"},
                    {"first": "10.0.10.3", "last": "10.0.10.3", "why": "excluded"},
                ],
                "addresses": [{"address": "10.0.10.0", "state": "misplaced", "services": used("old", "spec.externalIPs"), "holder": null}],
            }]},
            {"name": "lan", "ranges": [{
                "range": "10.0.9.10-10.0.9.12", "first": "10.0.9.10", "last": "10.0.9.12", "around": "10.0.9.8/29",
                "counts": {"usable": 3, "used": 2, "inFlight": 0, "free": 1, "excluded": 0, "usedAnyway": 0, "held": held[1]},
                "withheld": [],
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
    assert_eq!(
        unknown["notes"],
        json!(["it is unknown which nodes hold external addresses: no Leases were read in the namespace of \
         --agents-namespace"])
    );
    assert!(!unknown.to_string().contains("not-held"), "{unknown}");
    let table = audit(&folder, &services, &[]).stdout;
    let expected =
        "EXTERNAL POOL  RANGE                USABLE  USED  HELD  IN FLIGHT  FREE  EXCLUDED  USED ANYWAY  FILL\n";
    assert!(table.starts_with(expected), "{table}");
}

#[test]
fn leases_count_only_in_the_namespaces_of_the_server_and_the_agents() {
    let folder = Folder::new("audit-lease-namespaces");
    let in_namespace = |mut lease: Value, namespace: &str| {
        lease["metadata"]["namespace"] = json!(namespace);
        lease
    };
    let renewed = |mut lease: Value| {
        lease["spec"]["renewTime"] = json!("2099-01-01T00:00:00.000000Z");
        lease
    };
    let in_flight = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "x_serve_1", "leaseDurationSeconds": 70},
        "metadata": {
            "name": "ip-10-0-9-12", "namespace": "own", "labels": {"clusterip-policy/lease": "claim"},
            "annotations": {"clusterip-policy/address": "10.0.9.12", "clusterip-policy/service": "shop/late"},
        },
    });
    let own = vec![has("a", "10.0.9.10"), node("a", "True"), heartbeat("a", A1, 0), claim("10.0.9.10", A1)];
    let forged = [
        in_namespace(renewed(heartbeat("b", "b_agent_00000000000000b1", 0)), "shop"),
        in_namespace(claim("10.0.9.11", "b_agent_00000000000000b1"), "shop"),
        in_namespace(in_flight.clone(), "shop"),
    ];
    let contents = |namespaces: Value| {
        let metadata = json!({"name": "clusterip-snapshot"});
        json!({
            "apiVersion": "snapshot.clusterip-policy/v1", "kind": "Contents", "metadata": metadata,
            "leaseNamespaces": namespaces,
        })
    };
    let named = contents(json!({"server": "own", "agents": "own"}));
    let audited = |first: &[Value], more: &[Value], args: &[&str]| {
        let done = folder.audit(SETTINGS, &[first, &own, more].concat(), &[args, &["-o", "json"]].concat()).json();
        (done["external"].clone(), done["findings"].clone())
    };
    let expected = audited(std::slice::from_ref(&named), &[], &[]);
    assert_eq!(expected.0["pools"][1]["ranges"][0]["counts"]["held"], json!(1));
    assert_eq!(audited(std::slice::from_ref(&named), &forged, &[]), expected, "forged Leases");
    let given = ["--server-namespace", "own", "--agents-namespace", "own"];
    assert_eq!(audited(&[], &forged, &given), expected, "without a snapshot that names the namespaces");
    let wrong = contents(json!({"server": "shop", "agents": "shop"}));
    assert_eq!(audited(&[wrong], &forged, &given), expected, "the arguments come first");
    assert_ne!(audited(&[named], &[in_flight], &[]), expected, "the same claim in the namespace of the server");
    let unknown = audited(&[], &forged, &[]);
    assert_eq!(unknown.0["pools"][1]["ranges"][0]["counts"]["held"], json!(null));
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
