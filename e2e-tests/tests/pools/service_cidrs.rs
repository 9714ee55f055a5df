//! Pools whose ranges are those of ServiceCIDRs, which get and lose labels, and are created and deleted.

use serde_json::{Value, json};

use super::support::PoolCluster;
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::pools::pool;
use crate::support::serve_process::ServerBuilder;
use crate::support::webhook_cluster::{address, service, within};

/// Creates a ServiceCIDR, and waits until it is ready.
async fn service_cidr(plane: &ControlPlane, name: &str, cidr: &str) {
    let object = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": name}, "spec": {"cidrs": [cidr]}});
    plane.apply(&object.to_string()).await;
    plane.kubectl(&["wait", "--for=condition=Ready", "--timeout=60s", "servicecidr", name]).await.ok();
}

async fn create(cluster: &PoolCluster, namespace: &str, name: &str) -> Result<Value, String> {
    cluster.create(namespace, &service(name, json!({}))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_follow_service_cidrs_that_are_labelled_or_deleted() {
    let shared = ControlPlane::shared().await;
    if !shared.tells_addresses() {
        return shared.does_not_apply("a pool of ServiceCIDRs");
    }
    // Without a controller manager, no ServiceCIDR becomes ready.
    let options = Options { controller_manager: true, audit: false, ..Options::default() };
    let mut cluster = PoolCluster::start(options).await;
    labelled_service_cidr_extends_a_pool(&cluster).await;
    assert_eq!(cluster.server.terminate().await, 0);
    addresses_of_a_service_cidr_in_deletion_are_not_allocated(&mut cluster).await;
}

async fn labelled_service_cidr_extends_a_pool(cluster: &PoolCluster) {
    let namespace = cluster.plane.namespace("team").await;
    service_cidr(&cluster.plane, "team-1", "10.8.1.0/24").await;
    service_cidr(&cluster.plane, "team-2", "10.8.2.0/28").await;
    let spec = json!({"serviceCIDRSelector": {"matchLabels": {"team": "a"}}, "match": {"namespaces": [namespace]}});
    cluster.apply(&[pool("ServicePool", "team", spec)]).await;
    cluster.until_reason("ServicePool", "team", "NoRanges", "no ServiceCIDR object has these labels").await;

    cluster.plane.kubectl(&["label", "servicecidr", "team-2", "team=a"]).await.ok();
    let small = cluster.until_reason("ServicePool", "team", "InUse", "").await;
    assert_eq!(small["status"]["ranges"], json!(["10.8.2.0/28"]));
    cluster.serves(&namespace, &json!({}), "10.8.2.0/28").await;
    for nth in 0..14 {
        let created = create(cluster, &namespace, &format!("web-{nth}")).await.unwrap();
        assert!(within(address(&created), "10.8.2.0/28"), "{created}");
    }
    let refused = create(cluster, &namespace, "late").await.unwrap_err();
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

/// With the settings of a file.
async fn addresses_of_a_service_cidr_in_deletion_are_not_allocated(cluster: &mut PoolCluster) {
    const SETTINGS: &str = "
services:
  pools:
  - {name: only, cidrs: [10.2.0.0/24], match: {namespaces: [ranges-only]}}
  - {name: rest, cidrs: [172.21.0.0/24]}
";
    const REFUSED: &str = "addresses of it are refused by the API server";
    service_cidr(&cluster.plane, "team-a", "10.2.0.0/16").await;
    let server = ServerBuilder::new(&cluster.plane).settings(SETTINGS).args(&["--move", "never"]).registered();
    cluster.server = server.start().await;
    cluster.plane.namespace("ranges-only").await;
    cluster.serves("ranges-only", &json!({}), "10.2.0.0/24").await;
    create(cluster, "ranges-only", "first").await.unwrap();
    // Creates Services until one is refused with this text.
    let refused_with = async |text: &str| {
        let mut number = 0;
        eventually(&format!("a refusal with {text:?}"), async || {
            number += 1;
            let message = create(cluster, "ranges-only", &format!("late-{number}")).await.err()?;
            message.contains(text).then_some(message)
        })
        .await
    };
    // The ServiceCIDR exists as long as a Service has an address of it.
    let delete = ["delete", "servicecidr", "team-a", "--wait=false"];
    cluster.plane.kubectl(&delete).await.ok();
    let deleted = format!("ServiceCIDR team-a (10.2.0.0/16) is being deleted: {REFUSED}");
    let message = refused_with(&deleted).await;
    assert!(message.contains("pool \"only\" (10.2.0.0/24) has no usable address"), "{message}");
    let warned = |line: &String| line.contains("services.pools[0].cidrs[0]") && line.contains(&deleted);
    eventually("a warning in the log", async || cluster.server.log().iter().any(warned).then_some(())).await;

    // When the ServiceCIDR no longer exists, the settings are refused, because a pool is outside of all ranges. Other
    // pools can still be used.
    cluster.plane.kubectl(&["delete", "services", "--all", "--namespace", "ranges-only"]).await.ok();
    cluster.plane.kubectl(&["wait", "--for=delete", "servicecidr/team-a", "--timeout=60s"]).await.ok();
    refused_with(&format!("ServiceCIDR team-a (10.2.0.0/16) is gone: {REFUSED}")).await;

    service_cidr(&cluster.plane, "team-a", "10.2.0.0/16").await;
    let mut number = 0;
    eventually("addresses of the recreated range", async || {
        number += 1;
        create(cluster, "ranges-only", &format!("back-{number}")).await.ok()
    })
    .await;
}
