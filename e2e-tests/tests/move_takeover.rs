//! A process ends in the middle of a move, and the next process finishes it.

use axum::http::Method;
use serde_json::json;

use crate::support::cluster::Cluster;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{but_addresses, is_step, send, step};

const MOVED: &str = "AddressMoved: moved from windows to linux: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux (Deployment web)";

/// The steps of moves that a proxy has seen.
fn steps(proxy: &Proxy) -> Vec<&'static str> {
    proxy.writes().iter().filter_map(step).collect()
}

#[tokio::test]
async fn next_leader_finishes_the_move_of_a_killed_leader() {
    let cluster = Cluster::alone().await;
    let (one, two) = (Proxy::start(&cluster.plane).await, Proxy::start(&cluster.plane).await);
    let mut first = cluster.server(&one, &json!({})).registered().start().await;
    first.logged("leading: misplaced Services are moved").await;
    let second = cluster.server(&two, &json!({})).arg("--no-webhook").start().await;
    second.logged("another process leads").await;
    cluster.webhook_in_force().await;

    let place = cluster.place("takeover").await;
    place.all_was_looked_at("first").await;
    place.workload("linux").await;
    let gate = one.on(is_step(&place.namespace, "web", "assign"), Fault::PauseBefore);
    let before = place.service_at("web", [172, 21, 1, 30], json!({}), json!({})).await;
    gate.arrived().await;
    assert_eq!(place.outcome().await, ["ExternalName"]);
    // Only the leader has written.
    assert_eq!((steps(&one).contains(&"release"), steps(&two)), (true, vec![]));
    first.kill();
    gate.discard();
    // The Lease of the killed leader expires after 15 s.
    second.logged("leading: misplaced Services are moved").await;
    place.comes_to(&["linux", MOVED]).await;
    assert_eq!(but_addresses(&place.web().await), but_addresses(&before));
    // The webhook of the first process is still registered, but does not answer: Services are created without it, and
    // moved later.
    place.all_was_looked_at("second").await;
}

#[tokio::test]
async fn stopping_process_finishes_its_moves() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let mut server = cluster.server(&proxy, &json!({})).registered().start().await;
    let mut moves = Vec::new();
    for (nth, step) in [(31, "release"), (32, "assign"), (33, "cleanup")] {
        let place = cluster.place(&format!("stopped-at-{step}")).await;
        place.workload("linux").await;
        let gate = proxy.on(is_step(&place.namespace, "web", step), Fault::PauseBefore);
        let before = place.service_at("web", [172, 21, 1, nth], json!({}), json!({})).await;
        gate.arrived().await;
        moves.push((place, gate, before));
    }
    server.signal("TERM");
    eventually("readiness to be taken back", async || {
        let (status, why) = server.get("/readyz").await?;
        (status == 503).then(|| assert!(why.contains("stopping"), "{why}"))
    })
    .await;
    for (_, gate, _) in &moves {
        gate.release();
    }
    assert_eq!(server.ended().await.code(), Some(0));
    for (place, _, before) in moves {
        let name = &place.namespace;
        assert_eq!(place.outcome().await, ["linux", MOVED], "{name}");
        assert_eq!(but_addresses(&place.web().await), but_addresses(&before), "{name}");
    }
    // The stopped process has deleted the Lease that it created, and its webhook configuration.
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases/clusterip-leader", cluster.namespace);
    assert_eq!(send(&cluster.client, Method::GET, &lease, None).await, None);
    let webhook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/clusterip-policy";
    assert_eq!(send(&cluster.client, Method::GET, webhook, None).await, None);
}
