//! Runs `clusterip plan` with external addresses as a user does. `plan.rs` tests the whole output for the example, and
//! `filled_manifests.rs` tests how addresses are written into manifests.

use crate::command::{Done, Folder, snapshot_of};
use serde_json::{Value, json};

/// A pool for one namespace, a small pool for all namespaces, and no pool for Services.
const SETTINGS: &str = "
services: {serviceCIDRs: [172.21.0.0/16]}
external:
  pools:
  - {name: bank, cidrs: [10.0.10.0/30, 'fd00:10::1-fd00:10::1'], match: {namespaces: [bank]}}
  - {name: lan, cidrs: [10.0.9.10-10.0.9.12]}
";

/// The Service `shop/NAME` of our class, merged with `more`. Each name has a ClusterIP of its own.
fn service(name: &str, more: Value) -> Value {
    let last = 10 + name.bytes().map(u32::from).sum::<u32>() % 200;
    let cluster_ip = format!("172.21.0.{last}");
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "clusterIP": cluster_ip},
    });
    json_patch::merge(&mut service, &more);
    service
}

fn noted(name: &str, key: &str, value: &str) -> Value {
    service(name, json!({"metadata": {"annotations": {key: value}}}))
}

fn asks(name: &str, address: &str) -> Value {
    noted(name, "clusterip-policy/external-address", address)
}

fn has(name: &str, address: &str) -> Value {
    noted(name, "clusterip-policy/external-addresses", address)
}

fn claims(name: &str, address: &str) -> Value {
    service(name, json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null, "externalIPs": [address]}}))
}

/// Each Service as its name, its decision, its pool, its addresses and its messages.
fn told(done: &Done) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let list =
        |value: &Value, with: &str| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>().join(with);
    let line = |row: &Value| {
        let external = &row["external"];
        let [decision, pool, reason, source] =
            ["decision", "pool", "message", "source"].map(|key| text(&external[key]));
        let pool = if source == "-" { pool } else { format!("{pool} {source}") };
        let said = if row["decision"] == "denied" { text(&row["message"]) } else { reason };
        let said = [said, list(&row["warnings"], "; ")].join("; ");
        let said = said.split("; use an address").next().unwrap().trim_end_matches("; ").to_owned();
        format!("{} {decision} {pool} {} | {said}", text(&row["name"]), list(&external["addresses"], ","))
    };
    done.json()["services"].as_array().unwrap().iter().map(line).collect()
}

struct Case {
    name: &'static str,
    settings: String,
    cluster: Vec<Value>,
    manifests: Vec<Value>,
    status: i32,
    expected: Vec<&'static str>,
}

#[track_caller]
fn check(test: &str, rows: Vec<Case>) {
    let folder = Folder::new(test);
    let mut wrong = Vec::new();
    for Case { name, settings, cluster, manifests, status, expected } in rows {
        let items = snapshot_of(&cluster);
        let documents = manifests.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n");
        folder.write("settings.yaml", settings).write("there.json", items).write("in.yaml", documents);
        let args = ["plan", "in.yaml", "-s", "settings.yaml", "--snapshot", "there.json", "-o", "json"];
        let done = folder.run(&args);
        let found = told(&done);
        if (&found, done.status) != (&expected.iter().map(ToString::to_string).collect(), status) {
            wrong.push(format!("{name}: {} {found:#?}, expected {expected:#?}, {}", done.status, done.stderr));
            continue;
        }
        let count = |decision: &str| expected.iter().filter(|line| line.split(' ').nth(1) == Some(decision)).count();
        let [recorded, removed, unchanged, denied] = ["recorded", "removed", "unchanged", "denied"].map(count);
        let summary = json!({"recorded": recorded, "removed": removed, "unchanged": unchanged, "denied": denied});
        assert_eq!(done.json()["summary"]["external"], summary, "{name}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The Service `web` in the namespace of the pool `bank`, merged with `more`.
fn in_bank(more: Value) -> Value {
    let mut service = service("web", json!({"metadata": {"namespace": "bank"}}));
    json_patch::merge(&mut service, &more);
    service
}

#[test]
fn each_service_gets_a_free_address_of_its_pool() {
    let dual = |last: u8| {
        let addresses = [format!("172.21.0.{last}"), format!("fd00::{last}")];
        json!({"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "RequireDualStack"})
    };
    let both = SETTINGS.replace("[172.21.0.0/16]", "[172.21.0.0/16, 'fd00::/112']");
    let default = SETTINGS.replace("external:\n", "external:\n  default: true\n");
    check(
        "plan-external-free",
        vec![
            Case {
                name: "three addresses for four Services",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![
                    service("a", json!({})),
                    service("b", json!({})),
                    service("c", json!({})),
                    service("d", json!({})),
                ],
                status: 0,
                expected: vec![
                    "a recorded lan free 10.0.9.10 | -",
                    "b recorded lan free 10.0.9.12 | -",
                    "c recorded lan free 10.0.9.11 | -",
                    "d unchanged lan  | no address of pool \"lan\" is free; pool \"lan\" (10.0.9.10-10.0.9.12) is full: all \
                     3 external addresses are used; the Service waits for one",
                ],
            },
            Case {
                name: "both families, and a pool of its namespace",
                settings: both,
                cluster: vec![],
                manifests: vec![
                    in_bank(json!({"spec": dual(8)})),
                    in_bank(json!({"metadata": {"name": "other"}, "spec": dual(9)})),
                ],
                status: 0,
                expected: vec![
                    "web recorded bank free 10.0.10.1,fd00:10::1 | -",
                    "other recorded bank free 10.0.10.2 | -; pool \"bank\" (fd00:10::1) is full: all 1 external \
                     addresses are used; the Service waits for one",
                ],
            },
            Case {
                name: "external.default: without a class, and with another class",
                settings: default,
                cluster: vec![],
                manifests: vec![
                    service("a", json!({"spec": {"loadBalancerClass": null}})),
                    service("b", json!({"spec": {"loadBalancerClass": "example.com/cloud"}})),
                    service("c", json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}})),
                ],
                status: 0,
                expected: vec!["a recorded lan free 10.0.9.10 | -", "b - -  | -", "c - -  | -"],
            },
        ],
    );
}

#[test]
fn named_address_is_kept_for_the_first_service_that_may_have_it() {
    check(
        "plan-external-named",
        vec![
            Case {
                name: "an address that a later Service requests is not given to an earlier one",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![
                    service("a", json!({})),
                    service("b", json!({})),
                    asks("c", "10.0.9.10"),
                    has("d", "10.0.9.12"),
                ],
                status: 0,
                expected: vec![
                    "a recorded lan free 10.0.9.11 | -",
                    "b unchanged lan  | no address of pool \"lan\" is free; pool \"lan\" (10.0.9.10-10.0.9.12) is full: all \
                     3 external addresses are used; the Service waits for one",
                    "c recorded lan asked 10.0.9.10 | -",
                    "d unchanged lan kept 10.0.9.12 | already recorded",
                ],
            },
            Case {
                name: "several Services name one address: the first manifest gets it",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![asks("b", "10.0.9.10"), asks("a", "10.0.9.10"), claims("0", "10.0.9.10")],
                status: 1,
                expected: vec![
                    "b recorded lan asked 10.0.9.10 | -",
                    "a denied -  | Service shop/a: annotation clusterip-policy/external-address: 10.0.9.10 of pool \
                     \"lan\" is held by shop/b",
                    "0 denied -  | Service shop/0: spec.externalIPs: 10.0.9.10 of pool \"lan\" is held by shop/b",
                ],
            },
            Case {
                name: "a refused claim does not keep the address from a Service that requests it",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![
                    claims("b", "10.0.10.1"),
                    in_bank(json!({"metadata": {"annotations": {"clusterip-policy/external-address": "10.0.10.1"}}})),
                ],
                status: 1,
                expected: vec![
                    "b denied -  | Service shop/b: spec.externalIPs: 10.0.10.1 lies in pool \"bank\", which does not \
                     admit this Service: namespaces does not match",
                    "web recorded bank asked 10.0.10.1 | -",
                ],
            },
            Case {
                name: "a refused claim does not keep the address from a Service that takes any free one",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![claims("b", "10.0.10.1"), in_bank(json!({}))],
                status: 1,
                expected: vec![
                    "b denied -  | Service shop/b: spec.externalIPs: 10.0.10.1 lies in pool \"bank\", which does not \
                     admit this Service: namespaces does not match",
                    "web recorded bank free 10.0.10.1 | -",
                ],
            },
        ],
    );
}

#[test]
fn claim_or_record_of_a_service_of_another_class_is_refused_or_removed() {
    let metallb = json!({"metadata": {"annotations": {"metallb.io/loadBalancerIPs": "10.0.9.10"}}, "spec": {"loadBalancerClass": null}});
    check(
        "plan-external-classes",
        vec![
            Case {
                name: "an annotation of another program",
                settings: SETTINGS.to_owned(),
                cluster: vec![has("a", "10.0.9.10")],
                manifests: vec![service("b", metallb)],
                status: 1,
                expected: vec![
                    "b denied -  | Service shop/b: annotation metallb.io/loadBalancerIPs: 10.0.9.10 of pool \"lan\" is \
                     held by shop/a",
                ],
            },
            Case {
                name: "a record of a Service of another class",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![service(
                    "a",
                    json!({"metadata": {"annotations": {"clusterip-policy/external-addresses": "10.0.9.10"}}, "spec": {"loadBalancerClass": "example.com/cloud"}}),
                )],
                status: 0,
                expected: vec!["a removed -  | not of type LoadBalancer with the class of external addresses"],
            },
        ],
    );
}

#[test]
fn services_of_the_cluster_keep_their_addresses() {
    let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.11"}]}}});
    check(
        "plan-external-cluster",
        vec![
            Case {
                name: "Services of the cluster keep their addresses",
                settings: SETTINGS.to_owned(),
                cluster: vec![has("a", "10.0.9.12"), claims("old", "10.0.9.10"), service("shown", shown)],
                manifests: vec![service("b", json!({})), service("a", json!({})), asks("c", "10.0.9.12")],
                status: 1,
                expected: vec![
                    "b unchanged lan  | no address of pool \"lan\" is free; pool \"lan\" (10.0.9.10-10.0.9.12) is full: all \
                     3 external addresses are used; the Service waits for one",
                    "a recorded lan kept 10.0.9.12 | -",
                    "c denied -  | Service shop/c: annotation clusterip-policy/external-address: 10.0.9.12 of pool \
                     \"lan\" is held by shop/a",
                ],
            },
            Case {
                name: "what a Service of the cluster no longer claims is free",
                settings: SETTINGS.to_owned(),
                cluster: vec![claims("a", "10.0.9.10")],
                manifests: vec![
                    service("a", json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}})),
                    asks("b", "10.0.9.10"),
                ],
                status: 0,
                expected: vec!["a - -  | -", "b recorded lan asked 10.0.9.10 | -"],
            },
        ],
    );
}

#[test]
fn repeated_service_is_updated_and_generated_names_are_distinct_services() {
    let nameless = json!({"metadata": {"name": null, "generateName": "web-", "annotations": {"clusterip-policy/external-address": "10.0.9.11"}}});
    check(
        "plan-external-names",
        vec![
            Case {
                name: "the same Service twice",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![asks("a", "10.0.9.10"), service("a", json!({})), asks("a", "10.0.9.11")],
                status: 0,
                expected: vec![
                    "a recorded lan asked 10.0.9.10 | -",
                    "a recorded lan kept 10.0.9.10 | -; the same Service as in in.yaml: document 1, line 1",
                    "a recorded lan asked 10.0.9.11 | -; the same Service as in in.yaml: document 1, line 1",
                ],
            },
            Case {
                name: "generated names",
                settings: SETTINGS.to_owned(),
                cluster: vec![],
                manifests: vec![service("", nameless.clone()), service("", nameless)],
                status: 1,
                expected: vec![
                    "web-… recorded lan asked 10.0.9.11 | -",
                    "web-… denied -  | Service shop/(name yet to be generated): annotation \
                     clusterip-policy/external-address: 10.0.9.11 of pool \"lan\" is held by shop/web-…/0",
                ],
            },
        ],
    );
}

#[test]
fn no_output_about_external_addresses_without_external_pools() {
    let folder = Folder::new("plan-external-none");
    let some = [claims("a", "10.0.9.10"), service("b", json!({})), has("c", "10.0.9.10")];
    folder.write("in.yaml", some.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n"));
    let done = folder.run(&["plan", "in.yaml", "-o", "json"]);
    assert_eq!(done.status, 0, "{done:?}");
    assert!(!done.stdout.contains("\"external\""), "{done:?}");
    assert!(!folder.run(&["plan", "in.yaml"]).stdout.contains("EXTERNAL"), "the table");
}
