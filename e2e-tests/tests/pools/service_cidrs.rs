//! Pools whose ranges are those of labelled ServiceCIDRs.

use serde_json::json;

use super::support::PoolCluster;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::pools::pool;
use crate::support::webhook_cluster::{address, service, within};

#[tokio::test]
async fn labelled_service_cidr_extends_a_pool() {
    let shared = ControlPlane::shared().await;
    if !shared.tells_addresses() {
        return shared.does_not_apply("a pool of labelled ServiceCIDRs");
    }
    // Without a controller manager, no ServiceCIDR becomes ready.
    let options = Options { controller_manager: true, audit: false, ..Options::default() };
    let cluster = PoolCluster::start(options).await;
    let namespace = cluster.plane.namespace("team").await;
    for (name, cidr) in [("team-1", "10.8.1.0/24"), ("team-2", "10.8.2.0/28")] {
        let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": name}, "spec": {"cidrs": [cidr]}});
        cluster.plane.apply(&object.to_string()).await;
        cluster.plane.kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", "servicecidr", name]).await.ok();
    }
    let spec = json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}, "match": {"namespaces": [namespace]}});
    cluster.apply(&[pool("ServicePool", "team", spec)]).await;
    cluster.until_reason("ServicePool", "team", "NoRanges", "no ServiceCIDR object has these labels").await;

    cluster.plane.kubectl(&["label", "servicecidr", "team-2", "team=a"]).await.ok();
    let small = cluster.until_reason("ServicePool", "team", "InUse", "").await;
    assert_eq!(small["status"]["ranges"], json!(["10.8.2.0/28"]));
    cluster.serves(&namespace, &json!({}), "10.8.2.0/28").await;
    for nth in 0..14 {
        let created = cluster.create(&namespace, &service(&format!("web-{nth}"), json!({}))).await.unwrap();
        assert!(within(address(&created), "10.8.2.0/28"), "{created}");
    }
    let refused = cluster.create(&namespace, &service("late", json!({}))).await.unwrap_err();
    assert!(refused.contains("is full"), "{refused}");

    // The pool is extended with a label.
    cluster.plane.kubectl(&["label", "servicecidr", "team-1", "team=a"]).await.ok();
    cluster.serves(&namespace, &json!({}), "10.8.1.0/24").await;
    let both = json!(["10.8.1.0/24", "10.8.2.0/28"]);
    cluster.status_of("ServicePool", "team", |object| object["status"]["ranges"] == both).await;

    // The range of one ServiceCIDR leaves the pool with the label. The last range stays in use without the label.
    cluster.plane.kubectl(&["label", "servicecidr", "team-2", "team-"]).await.ok();
    let one = json!(["10.8.1.0/24"]);
    cluster.status_of("ServicePool", "team", |object| object["status"]["ranges"] == one).await;
    cluster.plane.kubectl(&["label", "servicecidr", "team-1", "team-"]).await.ok();
    let message = "; the previous version stays in use, with its ranges";
    let kept = cluster.until_reason("ServicePool", "team", "NoRanges", message).await;
    assert_eq!((&kept["status"]["ranges"], &kept["status"]["inUse"]["cidrs"]), (&one, &one), "{kept}");
    cluster.serves(&namespace, &json!({}), "10.8.1.0/24").await;
}
