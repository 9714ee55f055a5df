//! A Service gets an address of the first pool that matches it, also after the pools have changed.

use serde_json::json;

use super::support::{PoolCluster, labelled, pool_of};
use crate::support::pools::pool;
use crate::support::webhook_cluster::{address, service, within};

#[tokio::test]
async fn new_pool_with_a_higher_priority_counts_at_once() {
    const BACK: &str = "172.21.64.0/24";
    const FRONT: &str = "172.21.65.0/24";
    let cluster = PoolCluster::shared().await;
    let namespace = cluster.plane.namespace("placed").await;
    cluster.apply(&[pool_of("placed", BACK, &namespace)]).await;
    cluster.serves(&namespace, &json!({}), BACK).await;
    let front = json!({"tier": "front"});
    let before = cluster.create(&namespace, &labelled("before", &front)).await.unwrap();
    assert!(within(address(&before), BACK), "{before}");

    let matches = json!({"namespaces": [namespace], "serviceSelector": {"matchLabels": front}});
    cluster
        .apply(&[pool("ServicePool", "placed-front", json!({"priority": 5, "cidrs": [FRONT], "match": matches}))])
        .await;
    cluster.serves(&namespace, &front, FRONT).await;
    let labelled = cluster.create(&namespace, &labelled("after", &front)).await.unwrap();
    assert!(within(address(&labelled), FRONT), "{labelled}");
    let other = cluster.create(&namespace, &service("other", json!({}))).await.unwrap();
    assert!(within(address(&other), BACK), "{other}");

    cluster.delete_pool("placed-front").await;
    cluster.serves(&namespace, &front, BACK).await;
}
