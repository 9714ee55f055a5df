//! Runs `clusterip plan` with external addresses as a user does. `plan.rs` tests the whole output for the example, and
//! `filled_manifests.rs` tests how addresses are written into manifests.

use crate::command::external_snapshot::SETTINGS;
use crate::command::{Done, Folder, documents, merged, snapshot_of};
use serde_json::{Value, json};

/// The Service `shop/NAME` of our class, merged with `more`. Each name has a ClusterIP of its own.
fn service(name: &str, more: Value) -> Value {
    let last = 10 + name.bytes().map(u32::from).sum::<u32>() % 200;
    let cluster_ip = format!("172.21.0.{last}");
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external", "clusterIP": cluster_ip},
    });
    merged(service, more)
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

fn in_bank(mut service: Value) -> Value {
    service["metadata"]["namespace"] = json!("bank");
    service
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

/// Plans these manifests in a cluster with these Services. The exit status is 1 if one is denied.
#[track_caller]
fn check(test: &str, cluster: &[Value], manifests: &[Value], expected: &[&str]) {
    let folder = Folder::new(test);
    folder.write("settings.yaml", SETTINGS).write("there.json", snapshot_of(cluster));
    folder.write("in.yaml", documents(manifests));
    let done = folder.clusterip("plan in.yaml -s settings.yaml --snapshot there.json -o json");
    assert_eq!(told(&done), expected);
    let count = |decision: &str| expected.iter().filter(|line| line.split(' ').nth(1) == Some(decision)).count();
    let [recorded, removed, unchanged, denied] = ["recorded", "removed", "unchanged", "denied"].map(count);
    let summary = json!({"recorded": recorded, "removed": removed, "unchanged": unchanged, "denied": denied});
    assert_eq!((done.status, &done.json()["summary"]["external"]), (i32::from(denied > 0), &summary));
}

#[test]
fn named_address_is_not_given_to_an_earlier_service_and_services_wait_for_a_full_pool() {
    let other = json!({"metadata": {"annotations": {"clusterip-policy/external-addresses": "10.0.9.10"}},
                       "spec": {"loadBalancerClass": "example.com/cloud"}});
    check(
        "plan-external-named",
        &[],
        &[
            service("a", json!({})),
            service("b", json!({})),
            asks("c", "10.0.9.10"),
            has("d", "10.0.9.12"),
            service("other-class", other),
        ],
        &[
            "a recorded lan free 10.0.9.11 | -",
            "b unchanged lan  | no address of pool \"lan\" is free; pool \"lan\" (10.0.9.10-10.0.9.12) is full: all 3 \
             external addresses are used; the Service waits for one",
            "c recorded lan asked 10.0.9.10 | -",
            "d unchanged lan kept 10.0.9.12 | already recorded",
            "other-class removed -  | not of type LoadBalancer with the class of external addresses",
        ],
    );
}

#[test]
fn address_that_several_services_name_is_kept_for_the_first_one_that_may_have_it() {
    check(
        "plan-external-several",
        &[],
        &[
            asks("b", "10.0.9.10"),
            asks("a", "10.0.9.10"),
            claims("0", "10.0.9.10"),
            // The policy refuses these claims, so they keep the two addresses from no other Service.
            claims("d", "10.0.10.1"),
            claims("e", "10.0.10.2"),
            in_bank(asks("asking", "10.0.10.1")),
            in_bank(service("taking", json!({}))),
        ],
        &[
            "b recorded lan asked 10.0.9.10 | -",
            "a denied -  | Service shop/a: annotation clusterip-policy/external-address: 10.0.9.10 of pool \"lan\" is \
             held by shop/b",
            "0 denied -  | Service shop/0: spec.externalIPs: 10.0.9.10 of pool \"lan\" is held by shop/b",
            "d denied -  | Service shop/d: spec.externalIPs: 10.0.10.1 lies in pool \"bank\", which does not admit \
             this Service: namespaces does not match",
            "e denied -  | Service shop/e: spec.externalIPs: 10.0.10.2 lies in pool \"bank\", which does not admit \
             this Service: namespaces does not match",
            "asking recorded bank asked 10.0.10.1 | -",
            "taking recorded bank free 10.0.10.2 | -",
        ],
    );
}

#[test]
fn services_of_the_cluster_keep_their_addresses() {
    let shown = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.9.11"}]}}});
    check(
        "plan-external-cluster",
        &[has("a", "10.0.9.12"), claims("old", "10.0.9.10"), service("shown", shown)],
        &[service("b", json!({})), service("a", json!({})), asks("c", "10.0.9.12")],
        &[
            "b unchanged lan  | no address of pool \"lan\" is free; pool \"lan\" (10.0.9.10-10.0.9.12) is full: all 3 \
             external addresses are used; the Service waits for one",
            "a recorded lan kept 10.0.9.12 | -",
            "c denied -  | Service shop/c: annotation clusterip-policy/external-address: 10.0.9.12 of pool \"lan\" is \
             held by shop/a",
        ],
    );
    check(
        "plan-external-freed",
        &[claims("a", "10.0.9.10")],
        &[service("a", json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}})), asks("b", "10.0.9.10")],
        &["a - -  | -", "b recorded lan asked 10.0.9.10 | -"],
    );
}

#[test]
fn repeated_service_is_updated_and_generated_names_are_distinct_services() {
    let nameless = json!({"metadata": {"name": null, "generateName": "web-"}});
    let mut nameless = service("", nameless);
    nameless["metadata"]["annotations"] = json!({"clusterip-policy/external-address": "10.0.9.12"});
    check(
        "plan-external-names",
        &[],
        &[asks("a", "10.0.9.10"), service("a", json!({})), asks("a", "10.0.9.11"), nameless.clone(), nameless],
        &[
            "a recorded lan asked 10.0.9.10 | -",
            "a recorded lan kept 10.0.9.10 | -; the same Service as in in.yaml: document 1, line 1",
            "a recorded lan asked 10.0.9.11 | -; the same Service as in in.yaml: document 1, line 1",
            "web-… recorded lan asked 10.0.9.12 | -",
            "web-… denied -  | Service shop/(name yet to be generated): annotation clusterip-policy/external-address: \
             10.0.9.12 of pool \"lan\" is held by shop/web-…/3",
        ],
    );
}
