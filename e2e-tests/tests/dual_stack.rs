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
    created_services_get_addresses_of_both_families(&cluster).await;
    second_address_beside_one_set_by_hand_is_of_the_services_pool(&cluster).await;
    second_family_is_added_and_removed(&cluster).await;
    second_family_is_left_to_kubernetes_or_denied(&cluster).await;
}

/// Family and place of each address, the primary first.
fn shape(service: &Value) -> Vec<String> {
    let family = |address: &IpAddr| if address.is_ipv4() { 4 } else { 6 };
    addresses(service).iter().map(|address| format!("{} {}", family(address), place(*address))).collect()
}

async fn created_services_get_addresses_of_both_families(cluster: &WebhookCluster) {
    let namespace = cluster.plane.namespace("families").await;
    struct Case {
        name: &'static str,
        spec: Value,
        /// Family and pool of each address.
        expected: &'static [&'static str],
    }
    let cases = [
        Case { name: "nothing", spec: json!({}), expected: &["4 linux"] },
        Case { name: "single", spec: json!({"ipFamilyPolicy": "SingleStack"}), expected: &["4 linux"] },
        Case {
            name: "single-six",
            spec: json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]}),
            expected: &["6 linux"],
        },
        Case { name: "six", spec: json!({"ipFamilies": ["IPv6"]}), expected: &["6 linux"] },
        Case { name: "prefer", spec: json!({"ipFamilyPolicy": "PreferDualStack"}), expected: &["4 linux", "6 linux"] },
        Case {
            name: "require",
            spec: json!({"ipFamilyPolicy": "RequireDualStack"}),
            expected: &["4 linux", "6 linux"],
        },
        Case {
            name: "require-six-first",
            spec: json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6", "IPv4"]}),
            expected: &["6 linux", "4 linux"],
        },
        Case {
            name: "prefer-six-first",
            spec: json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]}),
            expected: &["6 linux", "4 linux"],
        },
        Case {
            name: "headless",
            spec: json!({"ipFamilyPolicy": "RequireDualStack", "clusterIP": "None"}),
            expected: &[],
        },
    ];
    let (mut seen, mut expected) = (Vec::new(), Vec::new());
    for Case { name, spec, expected: addresses } in cases {
        let service = annotated(name, json!({"clusterip-policy/os": "linux"}), spec);
        let made = cluster.create(&namespace, &service).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        seen.push((name, shape(&made)));
        expected.push((name, addresses.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()));
    }
    assert_eq!(seen, expected);
}

async fn second_address_beside_one_set_by_hand_is_of_the_services_pool(cluster: &WebhookCluster) {
    let namespace = cluster.plane.namespace("families-by-hand").await;
    for (name, policy, address, expected) in [
        ("require", "RequireDualStack", "172.21.0.8", ["4 linux", "6 linux"]),
        ("prefer", "PreferDualStack", "172.21.0.9", ["4 linux", "6 linux"]),
        ("six-first", "RequireDualStack", "fd00:21::9", ["6 linux", "4 linux"]),
        // With `explicit: warn`, it may stay in another pool.
        ("elsewhere", "RequireDualStack", "172.21.1.8", ["4 windows", "6 linux"]),
    ] {
        let spec = json!({"clusterIP": address, "ipFamilyPolicy": policy});
        let service = annotated(name, json!({"clusterip-policy/os": "linux"}), spec);
        let made = cluster.create(&namespace, &service).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(
            (made["spec"]["clusterIP"].as_str(), shape(&made)),
            (Some(address), expected.map(str::to_owned).to_vec())
        );
    }
}

async fn second_family_is_added_and_removed(cluster: &WebhookCluster) {
    let namespace = cluster.plane.namespace("families-updates").await;
    let policy = |policy: &str| json!({"spec": {"ipFamilyPolicy": policy}});
    let both = || json!({"spec": {"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}});
    let external = || json!({"type": "ExternalName", "externalName": "example.com"});
    let dual = || json!({"ipFamilyPolicy": "RequireDualStack"});
    struct Case {
        name: &'static str,
        /// The spec before.
        before: Value,
        change: Value,
        /// Family and pool of each address after the change.
        after: &'static [&'static str],
    }
    let cases = [
        Case {
            name: "to-require",
            before: json!({}),
            change: policy("RequireDualStack"),
            after: &["4 windows", "6 windows"],
        },
        Case {
            name: "to-prefer",
            before: json!({}),
            change: policy("PreferDualStack"),
            after: &["4 windows", "6 windows"],
        },
        Case { name: "to-both", before: json!({}), change: both(), after: &["4 windows", "6 windows"] },
        Case {
            name: "from-six",
            before: json!({"ipFamilies": ["IPv6"]}),
            change: policy("RequireDualStack"),
            after: &["6 windows", "4 windows"],
        },
        Case {
            name: "by-hand-second",
            before: json!({}),
            change: json!({"spec": {"ipFamilyPolicy": "RequireDualStack", "clusterIPs": null}}),
            after: &["4 windows", "6 windows"],
        },
        Case {
            name: "back",
            before: external(),
            change: json!({"spec": {"type": "ClusterIP", "externalName": null, "ipFamilyPolicy": "RequireDualStack"}}),
            after: &["4 windows", "6 windows"],
        },
        Case {
            name: "back-by-hand",
            before: external(),
            change: json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "172.21.1.9",
                "ipFamilyPolicy": "RequireDualStack"}}),
            after: &["4 windows", "6 windows"],
        },
        Case { name: "to-single", before: dual(), change: policy("SingleStack"), after: &["4 windows"] },
        Case {
            name: "require-to-prefer",
            before: dual(),
            change: policy("PreferDualStack"),
            after: &["4 windows", "6 windows"],
        },
    ];
    let (mut seen, mut expected) = (Vec::new(), Vec::new());
    for Case { name, before, change, after } in cases {
        let service = annotated(name, json!({"clusterip-policy/os": "windows"}), before);
        let made = cluster.create(&namespace, &service).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let now = cluster.patch(&namespace, name, change).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        // The Service keeps its first address.
        let kept = addresses(&made).first().is_none_or(|first| addresses(&now).first() == Some(first));
        seen.push((name, shape(&now), kept));
        expected.push((name, after.iter().map(|text| (*text).to_owned()).collect(), true));
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
