//! A renumbering of a cluster with two IP families.

use serde_json::{Value, json};

use super::support::{addresses, cluster_with_ranges, delete_pod, ranges, renumber};
use crate::support::cluster::Place;
use crate::support::control_plane::ControlPlane;

const OLD_RANGES: [&str; 2] = ["10.96.0.0/24", "fd00:96::/112"];

/// A cluster whose DNS Service and Service `web` have an address of each family. The Service `six` has only an address
/// of the second family.
async fn cluster() -> ControlPlane {
    let dual = |addresses: [&str; 2]| {
        json!({"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilies": ["IPv4", "IPv6"],
            "ipFamilyPolicy": "RequireDualStack"})
    };
    let plane = cluster_with_ranges(&OLD_RANGES, dual(["10.96.0.10", "fd00:96::a"])).await;
    let shop = Place { client: plane.client(), namespace: plane.namespace("shop").await };
    shop.service_named("web", json!({}), json!({"ipFamilyPolicy": "RequireDualStack"})).await;
    shop.service_named("six", json!({}), json!({"ipFamilies": ["IPv6"]})).await;
    plane
}

/// Which of the ranges each address of a Service is in.
fn ranges_of(addresses: &[String], service: &str) -> Vec<&'static str> {
    const RANGES: [&str; 4] = ["10.96.0.", "fd00:96::", "10.100.0.", "fd00:100::"];
    let found = addresses.iter().find_map(|it| it.strip_prefix(service)?.strip_prefix(' ')).unwrap();
    found.split(',').map(|address| RANGES.into_iter().find(|range| address.starts_with(range)).unwrap()).collect()
}

/// The addresses of `default/kubernetes`, the DNS Service and their aliases.
fn swapped(addresses: &[String]) -> Vec<&str> {
    addresses.iter().map(String::as_str).filter(|service| !service.starts_with("shop/")).collect()
}

async fn begin(plane: &ControlPlane, to: &str) {
    renumber(plane, &["begin", "--to", to, "--yes", "--grace-period", "1"]).await.ok();
}

async fn finish(plane: &ControlPlane) -> Value {
    delete_pod(plane, "coredns-a").await;
    renumber(plane, &["finish", "--kubelets-changed"]).await.ok();
    json!(ranges(plane).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn both_families_change_and_their_order_can_not() {
    let plane = cluster().await;
    let refused = renumber(&plane, &["begin", "--to", "fd00:100::/112,10.100.0.0/24", "--yes"]).await;
    assert_eq!(
        (refused.status, refused.stderr.as_str()),
        (
            2,
            "error: fd00:100::/112 is the first new range, but the primary family of the cluster is that of \
             10.96.0.0/24. The primary family can't change: Services that exist keep the order of their families, and \
             an API server needs the family of its own address first. Name the ranges in the order of the cluster\n"
        )
    );
    begin(&plane, "10.100.0.0/24,fd00:100::/112").await;
    let moved = addresses(&plane).await;
    assert_eq!(ranges_of(&moved, "shop/web"), ["10.100.0.", "fd00:100::"]);
    assert_eq!(ranges_of(&moved, "shop/six"), ["fd00:100::"]);
    plane.stop_api_server();
    plane.start_api_server_with("10.100.0.0/24,fd00:100::/112");
    renumber(&plane, &["switch", "--grace-period", "1"]).await.ok();
    assert_eq!(
        swapped(&addresses(&plane).await),
        [
            "default/clusterip-alias-kubernetes 10.96.0.1",
            "default/kubernetes 10.100.0.1",
            "kube-system/clusterip-alias-kube-dns 10.96.0.10,fd00:96::a",
            "kube-system/kube-dns 10.100.0.10,fd00:100::a",
        ]
    );
    assert_eq!(finish(&plane).await, json!([r#"kubernetes ["10.100.0.0/24","fd00:100::/112"]"#]));
}

#[tokio::test(flavor = "multi_thread")]
async fn first_family_changes_alone() {
    let plane = cluster().await;
    begin(&plane, "10.100.0.0/24").await;
    let moved = addresses(&plane).await;
    assert_eq!(ranges_of(&moved, "shop/web"), ["10.100.0.", "fd00:96::"]);
    plane.stop_api_server();
    plane.start_api_server_with("10.100.0.0/24,fd00:96::/112");
    renumber(&plane, &["switch", "--grace-period", "1"]).await.ok();
    assert_eq!(
        swapped(&addresses(&plane).await),
        [
            "default/clusterip-alias-kubernetes 10.96.0.1",
            "default/kubernetes 10.100.0.1",
            "kube-system/clusterip-alias-kube-dns 10.96.0.10",
            "kube-system/kube-dns 10.100.0.10,fd00:96::a",
        ]
    );
    assert_eq!(finish(&plane).await, json!([r#"kubernetes ["10.100.0.0/24","fd00:96::/112"]"#]));
}

#[tokio::test(flavor = "multi_thread")]
async fn second_family_changes_alone() {
    let plane = cluster().await;
    begin(&plane, "fd00:100::/112").await;
    let moved = addresses(&plane).await;
    assert_eq!(ranges_of(&moved, "shop/web"), ["10.96.0.", "fd00:100::"]);
    assert_eq!(ranges_of(&moved, "shop/six"), ["fd00:100::"]);
    plane.stop_api_server();
    plane.start_api_server_with("10.96.0.0/24,fd00:100::/112");
    renumber(&plane, &["switch", "--grace-period", "1"]).await.ok();
    assert_eq!(
        swapped(&addresses(&plane).await),
        [
            "default/kubernetes 10.96.0.1",
            "kube-system/clusterip-alias-kube-dns fd00:96::a",
            "kube-system/kube-dns 10.96.0.10,fd00:100::a",
        ]
    );
    assert_eq!(finish(&plane).await, json!([r#"kubernetes ["10.96.0.0/24","fd00:100::/112"]"#]));
}
