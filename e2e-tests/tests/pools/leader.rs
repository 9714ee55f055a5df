//! Only the leader writes the status of pools, and only what has changed.

use std::time::Duration;

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{apply, condition, path, policy};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::Proxy;
use crate::support::lent_control_plane::LentControlPlane;
use crate::support::move_helpers::send;
use crate::support::pools::pool;
use crate::support::serve_process::{Server, ServerBuilder};

/// A time in which a leader would write a status several times.
const SEVERAL_WRITES: Duration = Duration::from_secs(6);

/// A replica without a webhook, which reaches the API server through a proxy.
async fn replica(plane: &ControlPlane, proxy: &Proxy, nth: usize) -> Server {
    let kubeconfig = plane.write_kubeconfig(&format!("replica-{nth}.kubeconfig"), proxy.url(), plane.admin_token());
    ServerBuilder::as_user(&kubeconfig)
        .pools()
        .args(&["--namespace", "default", "--claims", "lease", "--no-webhook", "--move", "never"])
        .start()
        .await
}

/// How many times a replica has written a status.
fn written(proxy: &Proxy) -> usize {
    proxy.writes().iter().filter(|write| write.path.ends_with("/status")).count()
}

/// Waits until a replica writes no status, because nothing changes.
async fn settled(proxy: &Proxy) {
    eventually("the last write of a status", async || {
        let before = written(proxy);
        tokio::time::sleep(SEVERAL_WRITES).await;
        (written(proxy) == before).then_some(())
    })
    .await;
}

/// Gives the pool this range, waits until its status shows that the range is in use, and returns the pool.
async fn use_range(plane: &ControlPlane, cidr: &str) -> Value {
    apply(plane, &pool("ServicePool", "led", json!({"cidrs": [cidr]}))).await;
    eventually(&format!("the status with {cidr}"), async || {
        let object = send(&plane.client(), Method::GET, &path("ServicePool", "led"), None).await?;
        (object["status"]["ranges"] == json!([cidr]) && condition(&object, "Ready")["status"] == "True")
            .then_some(object)
    })
    .await
}

#[tokio::test]
async fn only_the_leader_writes_a_status_and_only_what_has_changed() {
    let plane = LentControlPlane::get().await;
    plane.install_pools().await;
    apply(&plane, &policy(&plane, json!({}))).await;
    let proxies = [Proxy::start(&plane).await, Proxy::start(&plane).await];
    let mut leader = replica(&plane, &proxies[0], 0).await;
    leader.logged(" leading").await;
    let other = replica(&plane, &proxies[1], 1).await;

    use_range(&plane, "172.21.8.0/24").await;
    settled(&proxies[0]).await;
    let first = send(&plane.client(), Method::GET, &path("ServicePool", "led"), None).await.unwrap();
    let managers = first["metadata"]["managedFields"].as_array().unwrap().iter();
    let of_status: Vec<&Value> = managers.filter(|entry| entry["subresource"] == "status").collect();
    assert_eq!(of_status.len(), 1, "{first}");
    assert_eq!((&of_status[0]["manager"], &of_status[0]["operation"]), (&json!("clusterip"), &json!("Apply")));
    assert_eq!(written(&proxies[1]), 0);

    let second = use_range(&plane, "172.21.9.0/24").await;
    let time = |object: &Value| condition(object, "Ready")["lastTransitionTime"].clone();
    assert_eq!(time(&second), time(&first), "the pool was ready all the time");
    assert_eq!(written(&proxies[1]), 0);

    // The next leader continues with the status that it finds.
    assert_eq!(leader.terminate().await, 0);
    other.logged(" leading").await;
    let third = use_range(&plane, "172.21.10.0/24").await;
    assert_eq!(time(&third), time(&first));
    assert!(written(&proxies[1]) > 0);
}
