//! `clusterip serve --seamless-moves`: it moves Services with ready endpoints, and the next leader finishes its moves.

use axum::http::Method;
use serde_json::{Value, json};

use super::support::{Stage, is_in_pool, temporary_of, with_controller_manager};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy, Seen};
use crate::support::move_helpers::{addresses, but_addresses, send};
use crate::support::serve_process::ServerBuilder;

/// The configuration of CoreDNS, with which DNS forgets an address after two seconds.
async fn short_dns_caches(plane: &ControlPlane) {
    let corefile = ".:53 {\n    kubernetes cluster.local {\n        ttl 1\n    }\n    cache 1\n}\n";
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "coredns", "namespace": "kube-system"},
        "data": {"Corefile": corefile}});
    plane.apply(&map.to_string()).await;
}

/// A server that moves all Services of the cluster, also those with ready endpoints.
fn server(stage: &Stage<'_>, proxy: &Proxy) -> ServerBuilder {
    let port = proxy.url().rsplit(':').next().unwrap();
    let kubeconfig =
        stage.plane.write_kubeconfig(&format!("{port}.kubeconfig"), proxy.url(), stage.plane.admin_token());
    let settings = std::fs::read_to_string(stage.settings()).unwrap();
    let args = ["--no-webhook", "--namespace", &stage.server, "--move", "always", "--seamless-moves"];
    ServerBuilder::as_user(&kubeconfig).args(&args).settings(&settings)
}

/// Waits until `web` has moved and nothing is left of the move, and compares it with the Service before.
async fn ends(stage: &Stage<'_>, before: &Value) {
    let after = eventually("the end of the move", async || {
        let web = stage.stored("web").await;
        let moved = addresses(&web).len() == 1 && addresses(&web).iter().all(is_in_pool);
        (moved && stage.left().await.is_empty()).then_some(web)
    })
    .await;
    assert_eq!(but_addresses(&after), but_addresses(before));
}

/// The write of `old` after the first swap.
fn takes_old(seen: &Seen) -> bool {
    seen.method == Method::PUT
        && !seen.is_dry_run()
        && seen.path.contains("/services/clusterip-old-")
        && seen.body["spec"]["type"] == "ClusterIP"
}

/// The write that gives `web` its new address.
fn assigns(seen: &Seen) -> bool {
    seen.method == Method::PUT
        && !seen.is_dry_run()
        && seen.path.ends_with("/services/web")
        && seen.body["spec"]["type"] == "ClusterIP"
}

#[tokio::test(flavor = "multi_thread")]
async fn next_leader_finishes_the_seamless_move_of_a_killed_leader() {
    struct Case {
        name: &'static str,
        write: fn(&Seen) -> bool,
        fault: Fault,
    }
    let cases = [
        Case { name: "leader-before-the-old-address", write: takes_old, fault: Fault::PauseBefore },
        Case { name: "leader-after-the-old-address", write: takes_old, fault: Fault::PauseAfter },
        Case { name: "leader-before-the-new-address", write: assigns, fault: Fault::PauseBefore },
        Case { name: "leader-after-the-new-address", write: assigns, fault: Fault::PauseAfter },
    ];
    let plane = with_controller_manager();
    short_dns_caches(&plane).await;
    for Case { name, write, fault } in cases {
        let stage = Stage::on(&plane, name).await;
        let (one, two) = (Proxy::start(&plane).await, Proxy::start(&plane).await);
        let gate = one.on(write, fault);
        let mut first = server(&stage, &one).start().await;
        first.logged("leading: misplaced Services are moved").await;
        let second = server(&stage, &two).start().await;
        second.logged("another process leads").await;
        let before = stage.service("web", json!({})).await;
        gate.arrived().await;
        first.kill();
        gate.discard();
        stage.free_the_lease().await;
        ends(&stage, &before).await;
        let path = crate::support::move_helpers::path(&stage.namespace, "web");
        send(&stage.client, Method::DELETE, &path, None).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_stops_in_the_grace_period_leaves_its_end_to_the_next_one() {
    let plane = with_controller_manager();
    let stage = Stage::on(&plane, "grace").await;
    let proxy = Proxy::start(&plane).await;
    // Without a configuration of CoreDNS, the grace period is a minute.
    let mut first = server(&stage, &proxy).start().await;
    let before = stage.service("web", json!({})).await;
    eventually("the new address", async || {
        let web = stage.stored("web").await;
        addresses(&web).first().is_some_and(is_in_pool).then_some(())
    })
    .await;
    eventually("the grace period", async || temporary_of(&stage, "new").await.is_none().then_some(())).await;
    let begun = std::time::Instant::now();
    assert_eq!(first.terminate().await, 0);
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    assert!(temporary_of(&stage, "old").await.is_some(), "the old address answers until the grace period ends");
    let second = server(&stage, &proxy).start().await;
    crate::support::eventually::eventually_within(
        std::time::Duration::from_secs(120),
        "the end of the grace period",
        async || stage.left().await.is_empty().then_some(()),
    )
    .await;
    ends(&stage, &before).await;
    drop(second);
}
