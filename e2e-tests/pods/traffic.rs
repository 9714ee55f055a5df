//! Pods answer through the addresses of their Services.

use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{field, install, service, uninstall};
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::json;

/// Waits until the Pod `web` answers the Pod `client`.
async fn answers(cluster: &WholeCluster, namespace: &str, host: &str, port: u16) {
    eventually(&format!("an answer from {host}:{port}"), async || {
        cluster.ask_from_pod(namespace, "client", host, port).await.ok().filter(|answer| answer == "web")
    })
    .await;
}

/// A Service that was created before the installation stays there. When its author asks for it, it gets an address of
/// its pool, and answers there.
pub async fn address_of_a_moved_service_answers(cluster: &WholeCluster) {
    let namespace = &cluster.namespace("moved").await;
    cluster.web_server(namespace, "web", "node-1").await;
    cluster.web_server(namespace, "client", "node-2").await;
    // Kubernetes keeps the first 256 addresses for those set by hand, so it gives none of the pool linux.
    cluster.apply(&service(namespace, "web", json!({})).to_string()).await;
    let before = field(cluster, namespace, "service/web", ".spec.clusterIP").await;
    answers(cluster, namespace, &before, 80).await;

    install(cluster, "webhook").await;
    let web = ["annotate", "--namespace", namespace, "service/web", "clusterip-policy/move=now"];
    cluster.kubectl(&web).await.ok();
    let address = eventually("a move into the pool", async || {
        let address = field(cluster, namespace, "service/web", ".spec.clusterIP").await;
        address.starts_with("172.21.0.").then_some(address)
    })
    .await;
    answers(cluster, namespace, &address, 80).await;
    // The DNS server and its clients keep the old address for 30 seconds each.
    answers(cluster, namespace, &format!("web.{namespace}.svc.cluster.local"), 80).await;
    assert!(cluster.ask_from_pod(namespace, "client", &before, 80).await.is_err(), "{before}");
    uninstall(cluster).await;
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
}
