//! Clusters without pools, pools that are deleted while Services have their addresses, and restarts of the server.

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{PoolCluster, condition, policy, pool_of, server};
use crate::support::move_helpers::{path, send};
use crate::support::pools::pool;
use crate::support::webhook_cluster::{address, service};

/// The condition `AddressesInPools` of the ClusterIPPolicy, when it has this message.
async fn in_pools(cluster: &PoolCluster, message: &str) -> Value {
    let is_expected = |object: &Value| condition(object, "AddressesInPools")["message"] == message;
    condition(&cluster.status_of("ClusterIPPolicy", "default", is_expected).await, "AddressesInPools")
}

#[tokio::test]
async fn services_keep_their_addresses_without_pools() {
    let cluster = PoolCluster::lent().await;
    let client = cluster.plane.client();
    assert_eq!(cluster.server.get("/readyz").await.unwrap().0, 200);
    let namespace = cluster.plane.namespace("before").await;
    let before = cluster.create(&namespace, &service("web", json!({}))).await.unwrap();

    cluster.apply(&[policy(&cluster.plane, json!({}))]).await;
    const REMEDY: &str = "; add a pool with this range, or run `clusterip move --seamless`, which moves the Services that a pool matches";
    let one = format!("1 Service has an address that lies in no pool: before/web{REMEDY}");
    let outside = in_pools(&cluster, &one).await;
    assert_eq!((&outside["status"], &outside["reason"]), (&json!("False"), &json!("OutsideOfPools")));
    cluster.until_reason("ClusterIPPolicy", "default", "InUse", "").await;

    cluster.apply(&[pool("ServicePool", "all", json!({"cidrs": ["172.21.0.0/16"]}))]).await;
    let inside = in_pools(&cluster, "the address of every Service lies in a pool").await;
    assert_eq!((&inside["status"], &inside["reason"]), (&json!("True"), &json!("AllInPools")));
    let namespace = cluster.plane.namespace("in-use").await;
    let mut services = vec![before];
    for nth in 0..4 {
        services.push(cluster.create(&namespace, &service(&format!("web-{nth}"), json!({}))).await.unwrap());
    }

    // The pool is deleted while Services have its addresses.
    cluster.delete_pool("all").await;
    let five = format!(
        "5 Services have an address that lies in no pool: before/web, in-use/web-0, in-use/web-1 and 2 more{REMEDY}"
    );
    in_pools(&cluster, &five).await;
    for service in &services {
        let text = |field| service["metadata"][field].as_str().unwrap();
        let now = send(&client, Method::GET, &path(text("namespace"), text("name")), None).await.unwrap();
        assert_eq!(address(&now), address(service));
        assert_eq!(now["metadata"]["resourceVersion"], service["metadata"]["resourceVersion"], "{now}");
    }
}

#[tokio::test]
async fn version_in_use_survives_a_restart_of_the_server() {
    const GOOD: &str = "172.21.20.0/24";
    let mut cluster = PoolCluster::lent().await;
    let namespace = cluster.plane.namespace("kept").await;
    cluster.apply(&[pool_of("kept", GOOD, &namespace), policy(&cluster.plane, json!({"order": "Lowest"}))]).await;
    cluster.until_reason("ClusterIPPolicy", "default", "InUse", "").await;
    cluster.until_reason("ServicePool", "kept", "InUse", "").await;
    cluster.serves(&namespace, &json!({}), GOOD).await;

    let mistake = json!({"order": "Lowest", "evidence": {"kinds": ["deployments"]}});
    cluster.apply(&[policy(&cluster.plane, mistake), pool_of("kept", "10.99.0.0/24", &namespace)]).await;
    let objects = [
        ("ServicePool", "kept", "OutsideServiceCIDRs", "; the previous version stays in use"),
        ("ClusterIPPolicy", "default", "Invalid", "; the previous settings stay in use"),
    ];
    let mut used = Vec::new();
    for (kind, name, reason, message) in objects {
        used.push(cluster.until_reason(kind, name, reason, message).await["status"]["inUse"].clone());
    }
    assert_eq!(used[0]["cidrs"], json!([GOOD]));
    assert_eq!(used[1]["order"], "Lowest");
    let (_, metrics) = cluster.server.get("/metrics").await.unwrap();
    assert!(metrics.contains("\nclusterip_settings_valid 1\n"), "a mistake affects only its object: {metrics}");

    assert_eq!(cluster.server.terminate().await, 0);
    cluster.server = server(&cluster.plane).start().await;
    cluster.server.logged(" leading").await;
    cluster.serves(&namespace, &json!({}), GOOD).await;
    // The order of the settings in use.
    for last in [1, 2] {
        let created = cluster.create(&namespace, &service(&format!("web-{last}"), json!({}))).await.unwrap();
        assert_eq!(address(&created).to_string(), format!("172.21.20.{last}"));
    }
    // The counts show that the new process has written the status.
    cluster.status_of("ServicePool", "kept", |object| object["status"]["addresses"]["used"] == 2).await;
    for ((kind, name, reason, message), used) in objects.into_iter().zip(used) {
        assert_eq!(cluster.until_reason(kind, name, reason, message).await["status"]["inUse"], used);
    }
}
