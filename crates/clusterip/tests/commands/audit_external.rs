//! Runs `clusterip audit` of external addresses as a user does, on snapshots. The whole output for the example is
//! tested in `audit.rs`.

use crate::command::external_snapshot::{A1, SETTINGS, audit, claim, has, heartbeat, node, plain, service, shows};
use crate::command::{Folder, check_fail_on, merged};
use serde_json::{Value, json};

#[test]
fn holders_are_unknown_without_leases() {
    let folder = Folder::new("audit-external-unknown");
    let unknown = audit(&folder, &[has("a", "10.0.9.10")], &["-o", "json"]);
    let range = &unknown.json()["external"]["pools"][1]["ranges"][0];
    assert_eq!((&range["counts"]["held"], &range["addresses"][0]["holder"]), (&json!(null), &json!(null)));
    assert_eq!(unknown.findings(), Vec::<String>::new());
    let note = "it is unknown which nodes hold external addresses: no Leases were read in the namespace of \
                --agents-namespace";
    assert_eq!(unknown.json()["notes"], json!([note]));
}

#[test]
fn leases_count_only_in_the_namespaces_of_the_server_and_the_agents() {
    let folder = Folder::new("audit-lease-namespaces");
    let in_namespace = |mut lease: Value, namespace: &str| {
        lease["metadata"]["namespace"] = json!(namespace);
        lease
    };
    let mut renewed = heartbeat("b", "b_agent_00000000000000b1", 0);
    renewed["spec"]["renewTime"] = json!("2099-01-01T00:00:00.000000Z");
    let in_flight = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "x_serve_1", "leaseDurationSeconds": 70},
        "metadata": {
            "name": "ip-10-0-9-12", "namespace": "own", "labels": {"clusterip-policy/lease": "claim"},
            "annotations": {"clusterip-policy/address": "10.0.9.12", "clusterip-policy/service": "shop/late"},
        },
    });
    let own = vec![has("a", "10.0.9.10"), node("a", "edge", "True"), heartbeat("a", A1, 0), claim("10.0.9.10", A1)];
    let forged = [
        in_namespace(renewed, "shop"),
        in_namespace(claim("10.0.9.11", "b_agent_00000000000000b1"), "shop"),
        in_namespace(in_flight.clone(), "shop"),
    ];
    let contents = |namespace: &str| {
        json!({
            "apiVersion": "snapshot.clusterip-policy/v1", "kind": "Contents", "metadata": {"name": "clusterip-snapshot"},
            "leaseNamespaces": {"server": namespace, "agents": namespace},
        })
    };
    let audited = |first: &[Value], more: &[Value], args: &[&str]| {
        let done = folder.audit(SETTINGS, &[first, &own, more].concat(), &[args, &["-o", "json"]].concat()).json();
        (done["external"].clone(), done["findings"].clone())
    };
    let held = |found: &(Value, Value)| found.0["pools"][1]["ranges"][0]["counts"]["held"].clone();
    let expected = audited(&[contents("own")], &[], &[]);
    assert_eq!(held(&expected), json!(1));
    assert_eq!(audited(&[contents("own")], &forged, &[]), expected, "forged Leases");
    let given = ["--server-namespace", "own", "--agents-namespace", "own"];
    assert_eq!(audited(&[], &forged, &given), expected, "without a snapshot that names the namespaces");
    assert_eq!(audited(&[contents("shop")], &forged, &given), expected, "the arguments come first");
    assert_ne!(audited(&[contents("own")], &[in_flight], &[]), expected, "the same claim in the server's namespace");
    assert_eq!(held(&audited(&[], &forged, &[])), json!(null), "no namespace is named");
}

/// The example has a finding of each other kind and cause.
#[test]
fn each_problem_of_external_addresses_is_a_finding() {
    let folder = Folder::new("audit-external-findings");
    let settings = SETTINGS.replace("10.0.9.12", "10.0.9.40")
        + "  - {name: tiny, cidrs: [10.0.12.1-10.0.12.1], match: {namespaces: [tiny]}}
  - {name: lone, cidrs: [10.0.11.1-10.0.11.1], nodes: {matchLabels: {lone: 'yes'}}}
";
    let ips = |address: &str| json!({"spec": {"externalIPs": [address]}});
    let metallb = |address: &str| json!({"metadata": {"annotations": {"metallb.io/loadBalancerIPs": address}}});
    let services = [
        has("web", "10.0.9.10"),
        plain("old", ips("10.0.9.10")),
        // It claims and shows its own address.
        shows(
            merged(
                merged(has("both", "10.0.9.11"), json!({"spec": {"loadBalancerIP": "10.0.9.11"}})),
                metallb("10.0.9.11"),
            ),
            "10.0.9.11",
        ),
        has("outside", "10.7.7.7"),
        has("family", "fd00::7"),
        merged(has("class", "10.0.9.12"), json!({"spec": {"loadBalancerClass": "metallb"}})),
        plain("claiming", ips("10.0.10.1")),
        plain("far", ips("192.0.2.1")),
        merged(
            plain("metal", metallb("10.0.9.13")),
            json!({"spec": {"type": "LoadBalancer", "loadBalancerClass": "metallb"}}),
        ),
        shows(plain("shown", json!({})), "10.0.9.14"),
        shows(has("wrong", "10.0.9.16"), "10.0.9.17"),
        service("going", json!({"metadata": {"deletionTimestamp": "2026-03-01T10:00:00Z"}})),
        merged(has("full", "10.0.12.1"), json!({"metadata": {"namespace": "tiny"}})),
        has("lone", "10.0.11.1"),
        has("returned", "10.0.9.21"),
        has("silent", "10.0.9.22"),
        has("ended", "10.0.9.23"),
        has("begun", "10.0.9.24"),
        has("almost-late", "10.0.9.25"),
        has("late", "10.0.9.26"),
    ];
    let agent = |node: &str| format!("{node}_agent_0000000000000001");
    let held_by_a = ["10.0.9.10", "10.0.9.11", "10.0.9.16", "10.0.12.1"].map(|address| claim(address, A1));
    let agents = [
        node("a", "edge", "True"),
        heartbeat("a", A1, 0),
        node("unready", "lone", "False"),
        claim("10.0.9.21", ""),
        claim("10.0.9.22", &agent("b")),
        claim("10.0.9.23", &agent("c")),
        heartbeat("c", "", 0),
        claim("10.0.9.24", &agent("d")),
        heartbeat("d", "d_agent_0000000000000002", 0),
        claim("10.0.9.25", &agent("e")),
        heartbeat("e", &agent("e"), 20),
        claim("10.0.9.26", &agent("f")),
        heartbeat("f", &agent("f"), 21),
    ];
    let objects = [&services[..], &held_by_a, &agents].concat();
    let args = ["--server-namespace", "own", "--agents-namespace", "own"];
    let audit = |more: &[&str]| folder.audit(&settings, &objects, &[&args, more].concat());
    let done = audit(&["-o", "json"]);
    assert_eq!(done.json()["notes"], json!([]));
    let found = done.findings();
    let found: Vec<&str> = found.iter().map(|line| line.split("; use an").next().unwrap()).collect();
    let expected = [
        "shared-external | - | 10.0.9.10 | lan | Service shop/old: 10.0.9.10 is used by it (spec.externalIPs), and \
         also by Service shop/web (record)",
        "shared-external | - | 10.0.9.10 | lan | Service shop/web: 10.0.9.10 is used by it (record), and also by \
         Service shop/old (spec.externalIPs)",
        "refused-external | - | 10.0.10.1 | bank | Service shop/claiming: 10.0.10.1 is claimed, and the policy \
         refuses it: spec.externalIPs: 10.0.10.1 lies in pool \"bank\", which does not admit this Service: \
         namespaces does not match",
        "refused-external | - | 10.0.9.12 | lan | Service shop/class: 10.0.9.12 is recorded, and the policy refuses \
         it: it is not one of those that get external addresses: type LoadBalancer with loadBalancerClass \
         clusterip-policy/external",
        "refused-external | - | fd00::7 | - | Service shop/family: fd00::7 is recorded, and the policy refuses it: \
         annotation clusterip-policy/external-addresses: fd00::7 is IPv6, which is not a family of the Service",
        "refused-external | - | 10.7.7.7 | - | Service shop/outside: 10.7.7.7 is recorded, and the policy refuses \
         it: annotation clusterip-policy/external-addresses: 10.7.7.7 lies in no pool of external addresses",
        "foreign-external | - | 10.0.9.13 | lan | Service shop/metal: 10.0.9.13 lies in pool lan \
         (10.0.9.10-10.0.9.40), and is used by metallb.io/loadBalancerIPs: no agent holds it",
        "foreign-external | - | 10.0.9.10 | lan | Service shop/old: 10.0.9.10 lies in pool lan \
         (10.0.9.10-10.0.9.40), and is used by spec.externalIPs: no agent holds it",
        "foreign-external | - | 10.0.9.14 | lan | Service shop/shown: 10.0.9.14 lies in pool lan \
         (10.0.9.10-10.0.9.40), and is used by status.loadBalancer.ingress: no agent holds it",
        "not-held | - | 10.0.9.24 | lan | Service shop/begun: 10.0.9.24 is held by node d, and its agent has begun \
         a new term since",
        "not-held | - | 10.0.9.23 | lan | Service shop/ended: 10.0.9.23 is held by node c, and its agent has given \
         its heartbeat back",
        "not-held | - | 10.0.9.26 | lan | Service shop/late: 10.0.9.26 is held by node f, and its agent has not \
         renewed its heartbeat in time",
        "not-held | - | 10.0.11.1 | lone | Service shop/lone: 10.0.11.1 is held by no node, and no node may hold it",
        "not-held | - | 10.0.9.21 | lan | Service shop/returned: 10.0.9.21 is held by no node",
        "not-held | - | 10.0.9.22 | lan | Service shop/silent: 10.0.9.22 is held by node b, and its agent has no \
         heartbeat",
        "wrong-ingress | - | 10.0.9.17 | lan | Service shop/wrong: 10.0.9.17 is shown in its status, but it has \
         recorded 10.0.9.16",
        "full-external-pool | - |  | tiny | external pool tiny (10.0.12.1) is full: all 1 addresses are used",
        "full-external-pool | - |  | lone | external pool lone (10.0.11.1) is full: all 1 addresses are used",
    ];
    assert_eq!(found, expected);
    check_fail_on(audit);
}

#[test]
fn problems_between_pools_and_their_announcer_are_findings() {
    let folder = Folder::new("audit-announcers");
    let settings = "
services:
  serviceCIDRs: [172.21.0.0/16]
external:
  pools:
  - {name: metal, cidrs: [10.0.9.10-10.0.9.40], announcer: metallb}
  - {name: agents, cidrs: [10.0.10.0/24], loadBalancerClass: example.com/agents}
";
    let sharing = |name: &str, port: u16| {
        let annotations = json!({"metallb.io/allow-shared-ip": "front", "metallb.io/loadBalancerIPs": "10.0.9.11"});
        let change = json!({"metadata": {"annotations": annotations}, "spec": {"ports": [{"port": port}]}});
        shows(merged(has(name, "10.0.9.11"), change), "10.0.9.11")
    };
    let pool = json!({
        "apiVersion": "metallb.io/v1beta1", "kind": "IPAddressPool",
        "metadata": {"namespace": "metallb-system", "name": "lan"}, "spec": {"addresses": ["10.0.9.10-10.0.10.7"]},
    });
    let services = [
        shows(has("web", "10.0.9.10"), "10.0.9.10"),
        sharing("front", 80),
        sharing("front-tls", 443),
        has("ignored", "10.0.9.12"),
        shows(has("elsewhere", "10.0.9.13"), "10.0.9.14"),
        service("waits", json!({})),
        pool,
    ];
    let audit = |services: &[Value]| folder.audit(settings, services, &["-o", "json"]);
    let found = audit(&services).findings();
    let expected = [
        "no-external | - |  | - | Service shop/waits: it has no external address, but should have one",
        "wrong-ingress | - | 10.0.9.13 | metal | Service shop/elsewhere: it has recorded 10.0.9.13, and its status, \
         which metallb writes, shows 10.0.9.14",
        "wrong-ingress | - | 10.0.9.12 | metal | Service shop/ignored: it has recorded 10.0.9.12, and its status, \
         which metallb writes, shows no address",
        "announcer-pool | - |  | metal | external pool metal: metallb also chooses addresses of it, from \
         IPAddressPool metallb-system/lan (10.0.9.10-10.0.10.7)",
        "announcer-pool | - |  | agents | external pool agents: IPAddressPool metallb-system/lan \
         (10.0.9.10-10.0.10.7) has addresses of it, but its announcer is agents",
    ];
    assert_eq!(found, expected);
    // Two Services that may not share an address have it all the same.
    let found = audit(&[sharing("front", 80), sharing("front-tls", 80)]).findings();
    let shared = |one: &str, other: &str| {
        format!(
            "shared-external | - | 10.0.9.11 | metal | Service shop/{one}: 10.0.9.11 is used by it (record), and also \
             by Service shop/{other} (record)"
        )
    };
    assert_eq!(found, [shared("front", "front-tls"), shared("front-tls", "front")]);
}
