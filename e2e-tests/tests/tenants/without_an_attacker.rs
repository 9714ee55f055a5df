//! Changes without an attacker: charts with an empty `clusterIP`, a first installation, new settings.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use axum::http::Request;
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use super::support::{BLUE, LINUX, LOST, NARROW, SETTINGS, Scene, WINDOWS};
use crate::support::eventually::{eventually, eventually_within};
use crate::support::move_helpers::{apply_server_side, path, stored};
use crate::support::webhook_cluster::{addresses, deployment, on, service, with_ranges, within};

/// Charts render `clusterIP: ""`, and Flux applies it with server-side apply.
#[tokio::test]
async fn empty_cluster_ip_pins_no_address() {
    let scene = Scene::shared().await;
    let author = scene.tenant("author").await;
    let namespace = &author.namespace;
    let apply = async |mut object: Value, path: String| {
        object["metadata"]["namespace"] = namespace.as_str().into();
        apply_server_side(&author.client, &path, "flux", true, &object).await.unwrap()
    };
    let empty = service("web", json!({"clusterIP": ""}));
    for _ in 0..2 {
        let applied = apply(empty.clone(), path(namespace, "web")).await;
        assert!(within(addresses(&applied)[0], LINUX), "{applied}");
    }
    let deployments = format!("/apis/apps/v1/namespaces/{namespace}/deployments/web");
    apply(deployment("web", on("windows")), deployments).await;
    let moved = async || {
        let web = stored(&scene.admin(), namespace, "web").await.unwrap();
        addresses(&web).first().is_some_and(|address| within(*address, WINDOWS)).then_some(())
    };
    eventually_within(LOST, "the Service to follow its Deployment", moved).await;
    // The author can apply the manifest again without a conflict, and the address stays.
    let applied = apply(empty, path(namespace, "web")).await;
    assert!(within(addresses(&applied)[0], WINDOWS), "{applied}");
}

/// A first installation, and then a change of settings, in a cluster whose Services are in no pool.
#[tokio::test]
async fn creates_succeed_while_many_misplaced_services_are_listed() {
    const OTHERS: usize = 400;
    let mut scene = Scene::without_server().await;
    let others = scene.plane.namespace("others").await;
    let create = async |nth: usize| {
        scene.create(&scene.admin(), &others, &service(&format!("other-{nth}"), json!({})), "").await.unwrap()
    };
    stream::iter((0..OTHERS).map(create)).buffer_unordered(40).collect::<Vec<_>>().await;
    scene.install().await;
    // Until the server answers, creates fail. So it has placed all Services that are created.
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/clusterip-policy";
    let mut webhooks: Value = scene.admin().request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
    webhooks["webhooks"][0]["failurePolicy"] = "Fail".into();
    scene.plane.kubectl_with(&["replace", "-f", "-"], &webhooks.to_string()).await.ok();
    let shop = scene.plane.namespace("shop").await;
    let probe = service("probe", json!({}));
    let path = "?dryRun=All";
    eventually("the webhook to be in force", async || scene.create(&scene.admin(), &shop, &probe, path).await.err())
        .await;

    // The pool has hardly more addresses than Services that are created.
    let half = SETTINGS.replace(LINUX, "172.21.0.0/25");
    scene.serve(&half).await;
    let first = creates_while_it_works(&scene, &shop, "first").await;
    // The Linux pool changes to another range, which no Service is in.
    let file = scene.server.as_ref().unwrap().folder().join("settings.yaml");
    let other = SETTINGS.replace(LINUX, "172.21.2.0/25");
    std::fs::write(file, with_ranges(&scene.plane, &other)).unwrap();
    let second = creates_while_it_works(&scene, &shop, "second").await;
    let placed = |range: &str| second.get(range).copied().unwrap_or_default();
    // The first Services may be placed by the old settings.
    let all = placed(LINUX) + placed("172.21.2.0/24");
    assert_eq!((&first, all), (&BTreeMap::from([(LINUX.to_owned(), 60)]), 60), "after the change: {second:?}");
    assert!(placed("172.21.2.0/24") >= 20, "the new settings are not in use: {second:?}");
}

/// Creates 60 Services within ten seconds after the first success, a third of them at once, and counts them by pool or
/// by error.
async fn creates_while_it_works(scene: &Scene, namespace: &str, names: &str) -> BTreeMap<String, usize> {
    let create = async |nth: u64| {
        // The others are created one after the other.
        tokio::time::sleep(Duration::from_millis(200 * nth.saturating_sub(20))).await;
        let manifest = service(&format!("{names}-{nth}"), json!({}));
        // The server has not started, or is not ready.
        let there = async || match scene.create(&scene.admin(), namespace, &manifest, "").await {
            Err(error) if error.contains("failed calling webhook") => None,
            done => Some(done),
        };
        eventually("the webhook to answer", there).await
    };
    let created = join_all((0..60).map(create)).await;
    let mut count = BTreeMap::new();
    for created in created {
        let place = match created {
            Ok(service) => range_of(addresses(&service)[0]),
            // Without the name, so that the same error is counted together.
            Err(error) => error.split_once("pool ").map_or(error.clone(), |(_, rest)| rest.to_owned()),
        };
        *count.entry(place).or_insert(0) += 1;
    }
    count
}

fn range_of(address: IpAddr) -> String {
    let ranges = [LINUX, WINDOWS, BLUE, NARROW, "172.21.2.0/24"];
    ranges.into_iter().find(|range| within(address, range)).map_or_else(|| address.to_string(), str::to_owned)
}
