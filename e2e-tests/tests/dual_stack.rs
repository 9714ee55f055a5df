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
  - {name: tight, cidrs: [172.21.51.0/24, 'fd00:21::600/126'], reserved: 3, match: {namespaces: [families-tight]}}
  - {name: windows, cidrs: [172.21.1.0/24, 'fd00:21::100/120'], reserved: 50, match: {os: windows}}
  - {name: linux, cidrs: [172.21.0.0/24, 'fd00:21::0/120'], reserved: 50, match: {os: linux}}
";

#[tokio::test]
async fn services_of_two_families_get_addresses_of_their_pools() {
    let cluster = WebhookCluster::start(Options::dual_stack(), SETTINGS).await;
    services_get_addresses_of_the_families_that_they_ask_for(&cluster).await;
    second_family_is_left_to_kubernetes_or_denied(&cluster).await;
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
        created("nothing", json!({}), &["4 linux"]),
        created("single", policy("SingleStack"), &["4 linux"]),
        created("single-six", json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}), &["6 linux"]),
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
        created("headless", json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "None"}), &[]),
        created("hand-require", by_hand("172.21.0.8", "RequireDualStack"), dual),
        created("hand-prefer", by_hand("172.21.0.9", "PreferDualStack"), dual),
        created("hand-six-first", by_hand("fd00:21::9", "RequireDualStack"), &["6 linux", "4 linux"]),
        // With `explicit: warn`, it may stay in another pool.
        created("hand-elsewhere", by_hand("172.21.1.8", "RequireDualStack"), &["4 windows", "6 linux"]),
        changed("to-require", json!({}), require(), dual_windows),
        changed("to-prefer", json!({}), prefer(), dual_windows),
        changed(
            "to-both",
            json!({}),
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}),
            dual_windows,
        ),
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
        changed("require-to-prefer", require(), prefer(), dual_windows),
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

/// Pools without a range, or without an address, of a family.
async fn second_family_is_left_to_kubernetes_or_denied(cluster: &WebhookCluster) {
    for namespace in ["families-four", "families-tight"] {
        assert_eq!(cluster.plane.namespace(namespace).await, namespace);
    }
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

    let denied = "admission webhook \"services.clusterip-policy.io\" denied the request: Service";
    let require = || json!({"ipFamilyPolicy": "RequireDualStack"});
    // There is one IPv6 address. The next Service that needs one is refused, and does not reserve an IPv4 address
    // either.
    cluster.create("families-tight", &service("first", require())).await.unwrap();
    let refused = cluster.create("families-tight", &service("second", require())).await.unwrap_err();
    let full = format!(
        "{denied} families-tight/second: pool \"tight\" (fd00:21::600/126) is full: 1 of 1 addresses used, the first 3 of \
         each range reserved; chosen by namespace families-tight; add a range to the pool, delete Services that are not \
         needed, or set services.whenFull: unmanaged"
    );
    assert_eq!(refused, full);
}
