//! Pods answer through the addresses of their Services.

use std::net::{IpAddr, SocketAddr};

use e2e_tests::support::eventually::eventually;
use e2e_tests::support::installation::{field, install, service, uninstall};
use e2e_tests::support::whole_cluster::WholeCluster;
use serde_json::json;

/// Creates a Pod `web` on the first node, and a Pod `client` on the second one.
async fn web_and_client(cluster: &WholeCluster, namespace: &str) {
    cluster.web_server(namespace, "web", "node-1").await;
    cluster.web_server(namespace, "client", "node-2").await;
}

/// Waits until the Pod `web` answers the Pod `client`.
async fn answers(cluster: &WholeCluster, namespace: &str, host: &str, port: u16) {
    eventually(&format!("an answer from {host}:{port}"), async || {
        cluster.ask_from_pod(namespace, "client", host, port).await.ok().filter(|answer| answer == "web")
    })
    .await;
}

pub async fn pods_answer(cluster: &WholeCluster) {
    let namespace = &cluster.namespace("traffic").await;
    web_and_client(cluster, namespace).await;
    cluster.apply(&service(namespace, "web", json!({"type": "NodePort"})).to_string()).await;
    let address = field(cluster, namespace, "service/web", ".spec.clusterIP").await;
    let node_port: u16 = field(cluster, namespace, "service/web", ".spec.ports[0].nodePort").await.parse().unwrap();

    answers(cluster, namespace, &address, 80).await;
    answers(cluster, namespace, &format!("web.{namespace}.svc.cluster.local"), 80).await;
    for node in cluster.nodes().values() {
        answers(cluster, namespace, &node.to_string(), node_port).await;
        let server = SocketAddr::new(*node, node_port);
        assert_eq!(cluster.ask_from_outside(server).await.unwrap(), "web", "{server}");
    }
    // A Pod also reaches itself through its Service.
    let itself = cluster.ask_from_pod(namespace, "web", &address, 80).await;
    assert_eq!(itself.as_deref(), Ok("web"));
    // Addresses of Services are not reachable from outside: no node announces them.
    let cluster_ip: IpAddr = address.parse().unwrap();
    assert!(cluster.ask_from_outside(SocketAddr::new(cluster_ip, 80)).await.is_err());
    cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]).await.ok();
}

/// A Service that was created before the installation stays there. When its author asks for it, it gets an address of
/// its pool, and answers there.
pub async fn address_of_a_moved_service_answers(cluster: &WholeCluster) {
    let namespace = &cluster.namespace("moved").await;
    web_and_client(cluster, namespace).await;
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
