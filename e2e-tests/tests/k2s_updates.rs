//! Commands of K2s after the migration to our webhook: they keep the webhook of K2s idle, or the documented steps make
//! it idle again.

use axum::http::Method;
use clusterip_core::service::is_set_by_hand;
use serde_json::{Value, json};

use crate::support::cluster::Place;
use crate::support::documented_steps::{Operator, Step, steps, steps_of};
use crate::support::eventually::eventually;
use crate::support::fake_kubelet::Installed;
use crate::support::k2s_webhook::{ACCOUNT, K2sWebhook};
use crate::support::move_helpers::{path, request, stored};
use crate::support::webhook_cluster::message;

/// What the log says about an active webhook of K2s.
const ACTIVE: &str = "the webhook of K2s also gives addresses to Services";

async fn install<'c>(cluster: &'c Installed, k2s: &K2sWebhook) -> Operator<'c> {
    let operator = Operator::new(&cluster.plane, &cluster.node.url());
    k2s.set_url(&operator);
    let exempt = steps_of("migrate-from-k2s.md", "1. Record the current state");
    operator.does(exempt.last().unwrap()).await;
    cluster.install(&operator).await;
    operator
}

/// Applies `deploy/k2s` as the migration does.
async fn make_idle(operator: &Operator<'_>) {
    operator.does_all(&steps_of("migrate-from-k2s.md", "4. Make the K2s webhook idle")).await;
}

/// Waits until the metric counts this many webhook configurations of other programs.
async fn counted(cluster: &Installed, configurations: usize) {
    let line = format!("clusterip_other_webhooks {configurations}");
    eventually(&line, async || {
        let server = cluster.node.server().await;
        let (_, metrics) = server.as_ref()?.get("/metrics").await?;
        metrics.lines().any(|found| found == line).then_some(())
    })
    .await;
}

/// The exit status of an audit that fails if there is a webhook of another program.
async fn audited(operator: &Operator<'_>) -> i32 {
    operator.tries(&Step::Type("clusterip audit -A --fail-on other-webhook".to_owned())).await.status
}

fn windows() -> Value {
    json!({"nodeSelector": {"kubernetes.io/os": "windows"}})
}

async fn address(place: &Place, name: &str) -> String {
    let service = stored(&place.client, &place.namespace, name).await.unwrap();
    service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned()
}

/// Creates a Service, and then its Windows workload: the Service gets an address from our webhook and then moves.
async fn creates_and_moves(place: &Place, name: &str) {
    let created = place.service_named(name, json!({}), json!({"selector": {"app": name}})).await;
    assert!(created["spec"]["clusterIP"].as_str().unwrap().starts_with("172.21.0."), "{name}: {created}");
    place.deployment(name, windows()).await;
    eventually(&format!("{name} to move"), async || address(place, name).await.starts_with("172.21.1.").then_some(()))
        .await;
    let moved = stored(&place.client, &place.namespace, name).await.unwrap();
    assert_eq!(moved["metadata"]["uid"], created["metadata"]["uid"], "{name} was recreated");
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_of_k2s_stays_idle_or_the_documented_steps_make_it_idle_again() {
    let cluster = Installed::nothing().await;
    let k2s = K2sWebhook::start().await;
    k2s.install(&cluster.plane).await;
    let operator = install(&cluster, &k2s).await;
    let shop = cluster.place("shop").await;
    updates_keep_it_idle(&cluster, &k2s, &operator, &shop).await;
    full_upgrade_keeps_addresses(&cluster, &k2s, &operator, &shop).await;
}

async fn updates_keep_it_idle(cluster: &Installed, k2s: &K2sWebhook, operator: &Operator<'_>, shop: &Place) {
    let plane = &cluster.plane;
    k2s.is_active(plane, "shop").await;
    cluster.node.logged(ACTIVE).await;
    counted(cluster, 1).await;
    assert_eq!(audited(operator).await, 1, "while both webhooks are active");

    make_idle(operator).await;
    k2s.is_idle(plane, "shop").await;
    cluster.node.logged("the webhook of K2s is not called any more").await;
    counted(cluster, 0).await;
    let calls = k2s.calls();
    creates_and_moves(shop, "migrated").await;
    assert_eq!(k2s.calls(), calls, "the webhook of K2s was called after the migration");
    k2s.update(plane).await.unwrap();
    creates_and_moves(shop, "updated").await;
    assert_eq!(k2s.calls(), calls, "the webhook of K2s was called after its update");
    k2s.start_pod(plane).await;
    creates_and_moves(shop, "renewed").await;
    assert_eq!(k2s.calls(), calls, "the webhook of K2s was called after its certificate was renewed");
    assert_eq!(audited(operator).await, 0);

    // An administrator who applies the manifests of K2s removes the conditions. This is reported.
    plane.apply(&k2s.configuration()).await;
    k2s.start_pod(plane).await;
    k2s.is_active(plane, "shop").await;
    counted(cluster, 1).await;
    assert_eq!(audited(operator).await, 1, "after the manifests of K2s were applied");
    make_idle(operator).await;
    k2s.is_idle(plane, "shop").await;
    counted(cluster, 0).await;

    // If the configuration is deleted, the next update makes the webhook active again. This is reported, and the
    // webhook may not delete Services.
    operator.does(&Step::Type("kubectl delete mutatingwebhookconfiguration k2s-webhook".to_owned())).await;
    k2s.update(plane).await.unwrap();
    k2s.is_active(plane, "shop").await;
    counted(cluster, 1).await;
    assert_eq!(audited(operator).await, 1, "after the configuration was deleted");
    let delete = request(Method::DELETE, &path("shop", "migrated"), &Value::Null);
    let refused = message(&plane.client_as(ACCOUNT).request::<Value>(delete).await.unwrap_err());
    assert!(refused.contains("the webhook of K2s may not delete Services"), "{refused}");
    creates_and_moves(shop, "beside").await;
    make_idle(operator).await;
    k2s.is_idle(plane, "shop").await;
    counted(cluster, 0).await;

    // The configuration of K2s need not exist: `deploy/k2s` creates one that `k2s system update` accepts.
    operator.does(&Step::Type("kubectl delete mutatingwebhookconfiguration k2s-webhook".to_owned())).await;
    make_idle(operator).await;
    k2s.update(plane).await.unwrap();
    k2s.is_idle(plane, "shop").await;
    assert_eq!(audited(operator).await, 0, "after an update with the configuration of deploy/k2s");
}

/// A full upgrade of K2s creates a new cluster and applies the exported objects, without webhook configurations.
async fn full_upgrade_keeps_addresses(cluster: &Installed, k2s: &K2sWebhook, operator: &Operator<'_>, shop: &Place) {
    let plane = &cluster.plane;
    for (name, spec) in [
        ("web", json!({})),
        ("node-port", json!({"type": "NodePort"})),
        ("headless", json!({"clusterIP": "None"})),
        ("mail", json!({"type": "ExternalName", "externalName": "mail.example.com"})),
    ] {
        let mut all = json!({"selector": {"app": name}});
        json_patch::merge(&mut all, &spec);
        shop.service_named(name, json!({}), all).await;
    }
    let services = async || {
        let mut all = Vec::new();
        for name in ["web", "node-port", "headless", "mail"] {
            all.push(stored(&cluster.client, "shop", name).await.unwrap());
        }
        all
    };
    let before = services().await;

    // What K2s exports of an object, and how it applies it in the new cluster.
    let run = async |command: &str| operator.does(&Step::Type(command.to_owned())).await;
    run("kubectl get services --namespace shop --output json | jq 'del(.items[].status, \
         .items[].metadata[\"creationTimestamp\", \"resourceVersion\", \"uid\"])' >services.json")
    .await;
    run("kubectl delete services --namespace shop --all").await;
    run("kubectl delete mutatingwebhookconfiguration clusterip-policy k2s-webhook").await;
    k2s.install(plane).await;
    run("kubectl apply --server-side --force-conflicts -f services.json --namespace shop").await;
    let restored = services().await;
    let specs = |services: &[Value]| services.iter().map(|service| service["spec"].clone()).collect::<Vec<_>>();
    assert_eq!(specs(&restored), specs(&before));
    let by_hand = |services: &[Value]| services.iter().filter_map(is_set_by_hand).collect::<Vec<_>>();
    assert_eq!(by_hand(&restored), [true, true, true, false]);

    operator.does_all(&steps("After a full upgrade or a restore of K2s")).await;
    k2s.is_idle(plane, "shop").await;
    cluster.is_asked().await;
    let released = services().await;
    assert_eq!(specs(&released), specs(&before));
    assert_eq!(by_hand(&released), [false; 4]);
    let uids = |services: &[Value]| services.iter().map(|it| it["metadata"]["uid"].clone()).collect::<Vec<_>>();
    assert_eq!(uids(&released), uids(&restored));
    shop.deployment("web", windows()).await;
    eventually("web to move", async || address(shop, "web").await.starts_with("172.21.1.").then_some(())).await;
    assert_eq!(uids(&services().await), uids(&restored));
}
