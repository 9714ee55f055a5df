//! Services with addresses of two families, on a dual-stack cluster.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::support::control_plane::Options;
use crate::support::webhook_cluster::{WebhookCluster, addresses, annotated, place, service};

// Before Kubernetes 1.34, an IPv6 Service range has at most 65,536 addresses.
const SETTINGS: &str = "
services:
  pools:
  - {name: four, cidrs: [172.21.50.0/24], match: {namespaces: [families-four]}}
  - {name: windows, cidrs: [172.21.1.0/24, 'fd00:21::100/120'], reserved: 50, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24, 'fd00:21::0/120'], reserved: 50, match: {os: linux}}
";

#[tokio::test]
async fn services_of_two_families_get_addresses_of_their_pools() {
    let cluster = WebhookCluster::start(Options::dual_stack(), SETTINGS).await;
    services_get_addresses_of_the_families_that_they_ask_for(&cluster).await;
    second_family_is_left_to_kubernetes(&cluster).await;
}

/// Family and place of each address, the primary first.
fn shape(service: &Value) -> Vec<String> {
    let family = |address: &IpAddr| if address.is_ipv4() { 4 } else { 6 };
    addresses(service).iter().map(|address| format!("{} {}", family(address), place(*address))).collect()
}

/// A Service with its operating system and spec, a change of it, and the family and pool of each address afterwards.
struct Case {
    name: &'static str,
    os: &'static str,
    spec: Value,
    change: Option<Value>,
    expected: &'static [&'static str],
}

fn created(name: &'static str, spec: Value, expected: &'static [&'static str]) -> Case {
    Case { name, os: "linux", spec, change: None, expected }
}

fn changed(name: &'static str, spec: Value, change: Value, expected: &'static [&'static str]) -> Case {
    Case { name, os: "windows", spec, change: Some(json!({ "spec": change })), expected }
}

fn cases() -> Vec<Case> {
    let policy = |policy: &str| json!({ "ipFamilyPolicy": policy });
    let by_hand = |address: &str, policy: &str| json!({"clusterIP": address, "ipFamilyPolicy": policy});
    let external = || json!({"type": "ExternalName", "externalName": "example.com"});
    let (require, prefer) = (|| policy("RequireDualStack"), || policy("PreferDualStack"));
    let dual = &["4 linux", "6 linux"];
    let dual_windows = &["4 windows", "6 windows"];
    vec![
        created("six", json!({"ipFamilies": ["IPv6"]}), &["6 linux"]),
        created("prefer", prefer(), dual),
        created("require", require(), dual),
        created(
            "require-six-first",
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}),
            &["6 linux", "4 linux"],
        ),
        created(
            "prefer-six-first",
            json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]}),
            &["6 linux", "4 linux"],
        ),
        created("hand-require", by_hand("172.21.0.8", "RequireDualStack"), dual),
        // With `explicit: warn`, it may stay in another pool.
        created("hand-elsewhere", by_hand("172.21.1.8", "RequireDualStack"), &["4 windows", "6 linux"]),
        changed("to-require", json!({}), require(), dual_windows),
        changed("from-six", json!({"ipFamilies": ["IPv6"]}), require(), &["6 windows", "4 windows"]),
        changed(
            "list-removed",
            json!({}),
            json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": null}),
            dual_windows,
        ),
        changed(
            "back",
            external(),
            json!({"type": "ClusterIP", "externalName": null, "ipFamilyPolicy": "RequireDualStack"}),
            dual_windows,
        ),
        changed(
            "back-by-hand",
            external(),
            json!({"type": "ClusterIP", "externalName": null, "clusterIP": "172.21.1.9",
                "ipFamilyPolicy": "RequireDualStack"}),
            dual_windows,
        ),
        changed("to-single", require(), policy("SingleStack"), &["4 windows"]),
    ]
}

async fn services_get_addresses_of_the_families_that_they_ask_for(cluster: &WebhookCluster) {
    let namespace = cluster.plane.namespace("families").await;
    let (mut seen, mut expected) = (Vec::new(), Vec::new());
    for case in cases() {
        let name = case.name;
        let service = annotated(name, json!({"clusterip-policy/os": case.os}), case.spec.clone());
        let made = cluster.create(&namespace, &service).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut now = made.clone();
        if let Some(change) = case.change {
            now = cluster.patch(&namespace, name, change).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        // The Service keeps the address that its author set, or that it had before the change.
        let had = case.spec["clusterIP"].as_str().and_then(|text| text.parse().ok());
        let had = had.or_else(|| addresses(&made).first().copied());
        let kept = had.is_none_or(|had| addresses(&now).first() == Some(&had));
        seen.push((name, shape(&now), kept));
        expected.push((name, case.expected.iter().map(|text| (*text).to_owned()).collect(), true));
    }
    assert_eq!(seen, expected);
}

/// A pool without a range of a family.
async fn second_family_is_left_to_kubernetes(cluster: &WebhookCluster) {
    assert_eq!(cluster.plane.namespace("families-four").await, "families-four");
    let prefer = cluster
        .plane
        .kubectl_with(
            &["apply", "--namespace=families-four", "-f", "-"],
            &service("prefer", json!({"ipFamilyPolicy": "PreferDualStack"})).to_string(),
        )
        .await;
    let warning = prefer.stderr.clone();
    prefer.ok();
    assert_eq!(
        warning,
        "Warning: pool \"four\" has no IPv6 range: Kubernetes picks the second address from any range\n"
    );
    let made = cluster.get("families-four", "prefer").await;
    assert_eq!(addresses(&made).len(), 2);
    assert!(crate::support::webhook_cluster::within(addresses(&made)[0], "172.21.50.0/24"), "{made}");
}
