//! The condition `Ready` of pools.

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{PoolCluster, condition, path, pool_of};
use crate::support::move_helpers::send;
use crate::support::pools::pool;

struct Case {
    name: &'static str,
    spec: Value,
    reason: &'static str,
    /// A part of the message.
    message: &'static str,
}

/// `tells_ranges`: whether the API server has ServiceCIDRs. Otherwise the Service ranges are those of the settings.
fn cases(namespace: &str, tells_ranges: bool) -> Vec<Case> {
    let case = |name, reason, message, mut spec: Value, namespace: &str| {
        spec["match"] = json!({"namespaces": [namespace]});
        Case { name, spec, reason, message }
    };
    let outside = if tells_ranges {
        "spec.cidrs[0]: 10.99.0.0/24 lies outside of the Service ranges of the cluster (172.21.0.0/16, fd00:21::/108)"
    } else {
        "spec.cidrs[0]: 10.99.0.0/24 lies outside serviceCIDRs (172.21.0.0/16, fd00:21::/108)"
    };
    let empty = "spec.cidrs[0]: 172.21.71.0/24 has no usable address";
    let overlaps = "spec.cidrs[0]: 172.21.70.128/25 overlaps 172.21.70.0/24 of pool \"judged-good\"";
    let late = "spec.match: never used: pool \"judged-good\", which is tried first, matches the same or more";
    let unlabelled = "spec.serviceCIDRSelector: no ServiceCIDR object has these labels";
    let range = |cidr: &str| json!({"cidrs": [cidr]});
    let without_ranges = json!({"serviceCIDRSelector": {"matchLabels": {"team": "nobody"}}});
    let reserved = json!({"cidrs": ["172.21.71.0/24"], "reserved": 256});
    let last = json!({"priority": -1, "cidrs": ["172.21.72.0/24"]});
    vec![
        case("judged-good", "InUse", "the pool is in use", range("172.21.70.0/24"), namespace),
        case("judged-empty", "Invalid", empty, reserved, "judged-empty"),
        case("judged-inside", "Overlaps", overlaps, range("172.21.70.128/25"), "judged-inside"),
        case("judged-outside", "OutsideServiceCIDRs", outside, range("10.99.0.0/24"), "judged-outside"),
        case("judged-late", "NeverUsed", late, last, namespace),
        case("judged-unlabelled", "NoRanges", unlabelled, without_ranges, "judged-unlabelled"),
    ]
}

#[tokio::test]
async fn condition_says_why_a_pool_is_not_in_use() {
    let cluster = PoolCluster::shared().await;
    let namespace = cluster.plane.namespace("judged").await;
    let cases = cases(&namespace, cluster.plane.tells_addresses());
    // Of two new pools, the one with the higher priority would be used: the good one comes first.
    for Case { name, spec, reason, message } in &cases {
        cluster.apply(&[pool("ServicePool", name, spec.clone())]).await;
        cluster.until_reason("ServicePool", name, reason, message).await;
    }
    for Case { name, reason, message, .. } in &cases {
        let object = cluster.until_reason("ServicePool", name, reason, message).await;
        let ready = condition(&object, "Ready");
        assert!(ready["lastTransitionTime"].is_string(), "{object}");
        let (ranges, used) = (&object["status"]["ranges"], &object["status"]["inUse"]);
        assert_eq!((ranges == &json!([]), used.is_null()), (*reason != "InUse", *reason != "InUse"), "{object}");
        let stalled = condition(&object, "Stalled");
        match *reason {
            "InUse" => assert_eq!(stalled, Value::Null, "{object}"),
            reason => assert_eq!((&stalled["status"], &stalled["reason"]), (&json!("True"), &json!(reason))),
        }
    }
    for (is, name) in [("True", "judged-good"), ("False", "judged-outside")] {
        let wait = format!("--for=condition=Ready={is}");
        cluster.plane.kubectl(&["wait", &wait, "--timeout=10s", &format!("servicepool/{name}")]).await.ok();
    }

    // A mistake of another pool can go away without an edit of the pool itself.
    let before = cluster.object("ServicePool", "judged-inside").await;
    cluster.delete_pool("judged-good").await;
    let after = cluster.until_reason("ServicePool", "judged-inside", "InUse", "").await;
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
