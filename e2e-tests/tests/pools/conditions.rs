//! The condition `Ready` of pools.

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{PoolCluster, condition, path, pool_of};
use crate::support::move_helpers::send;

/// The tables of `crates/api` have every reason.
#[tokio::test]
async fn condition_says_why_a_pool_is_not_in_use() {
    let cluster = PoolCluster::shared().await;
    cluster.apply(&[pool_of("judged-good", "172.21.70.0/24", "judged")]).await;
    cluster.until_reason("ServicePool", "judged-good", "InUse", "the pool is in use").await;
    cluster.apply(&[pool_of("judged-inside", "172.21.70.128/25", "judged-inside")]).await;
    let overlaps = "spec.cidrs[0]: 172.21.70.128/25 overlaps 172.21.70.0/24 of pool \"judged-good\"";
    let before = cluster.until_reason("ServicePool", "judged-inside", "Overlaps", overlaps).await;
    assert!(condition(&before, "Ready")["lastTransitionTime"].is_string(), "{before}");
    assert_eq!((&before["status"]["ranges"], &before["status"]["inUse"]), (&json!([]), &Value::Null), "{before}");
    let stalled = condition(&before, "Stalled");
    assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!("Overlaps")));
    for (is, name) in [("True", "judged-good"), ("False", "judged-inside")] {
        let wait = format!("--for=condition=Ready={is}");
        cluster.plane.kubectl(&["wait", &wait, "--timeout=10s", &format!("servicepool/{name}")]).await.ok();
    }
    // A mistake of another pool can go away without an edit of the pool itself.
    cluster.delete_pool("judged-good").await;
    let after = cluster.until_reason("ServicePool", "judged-inside", "InUse", "").await;
    assert_eq!(condition(&after, "Stalled"), Value::Null, "{after}");
    assert_eq!(after["metadata"]["generation"], before["metadata"]["generation"]);
    assert_eq!(after["status"]["ranges"], json!(["172.21.70.128/25"]));
}

/// The status of an object that was deleted and created again is written again.
#[tokio::test]
async fn pool_that_is_replaced_gets_a_status() {
    let cluster = PoolCluster::shared().await;
    let namespace = cluster.plane.namespace("replaced").await;
    let pool = pool_of("replaced", "172.21.76.0/24", &namespace);
    cluster.apply(std::slice::from_ref(&pool)).await;
    let first = cluster.until_reason("ServicePool", "replaced", "InUse", "").await;
    let (client, path) = (cluster.plane.client(), path("ServicePool", "replaced"));
    send(&client, Method::DELETE, &path, None).await.unwrap();
    cluster.apply(std::slice::from_ref(&pool)).await;
    let second = cluster.until_reason("ServicePool", "replaced", "InUse", "").await;
    assert_ne!(second["metadata"]["uid"], first["metadata"]["uid"]);
}
