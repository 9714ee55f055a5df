//! How many requests the server sends while a tenant keeps changing a workload that many of its Services select.

use std::time::Duration;

use axum::http::{Method, Request};
use futures::future::join_all;
use serde_json::{Value, json};

use super::settings_brake::{too_large, with_ports};
use super::support::{Scene, WINDOWS};
use crate::support::eventually::eventually;
use crate::support::move_helpers::stored;
use crate::support::webhook_cluster::{addresses, annotated, deployment, on, service, within};

const KEPT: usize = 40;
const LARGE: usize = 3;
const ASKED: usize = 3;
const HEADLESS: usize = 100;
const FLIPS: usize = 20;

/// How many times a single Service was read from the API server.
async fn reads(scene: &Scene) -> usize {
    let request = Request::get("/metrics").body(Vec::new()).unwrap();
    let metrics = scene.admin().request_text(request).await.unwrap();
    let is_read = |line: &&str| {
        ["apiserver_request_total{", "resource=\"services\"", "scope=\"resource\"", "verb=\"GET\""]
            .iter()
            .all(|part| line.contains(part))
    };
    metrics.lines().filter(is_read).map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
}

/// Services that stay where they are, Services that are too large to move, of which some are too large to be read and ask
/// for their move, and headless ones: the server reads each large Service once, when its move would begin, and reads none
/// of the others. Each Service gets few Events.
#[tokio::test]
async fn flipped_workload_causes_a_read_only_when_a_move_begins() {
    let scene = Scene::start().await;
    let mallory = scene.tenant("mallory").await;
    let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", mallory.namespace);
    mallory.request(Method::POST, &deployments, &deployment("web", on("linux"))).await.unwrap();
    let selects = || json!({"selector": {"app": "web"}});
    let kept = |nth| annotated(&format!("kept-{nth}"), json!({"clusterip-policy/move": "never"}), selects());
    let asked = |nth| {
        let mut asked = with_ports(&format!("asked-{nth}"), 4000);
        asked["metadata"]["annotations"]["clusterip-policy/move"] = "now".into();
        asked
    };
    let headless = |nth| service(&format!("headless-{nth}"), json!({"clusterIP": "None", "selector": {"app": "web"}}));
    let all: Vec<Value> = (0..KEPT)
        .map(kept)
        .chain((0..LARGE).map(|nth| too_large(&format!("large-{nth}"))))
        .chain((0..ASKED).map(asked))
        .chain((0..HEADLESS).map(headless))
        .collect();
    join_all(all.iter().map(|one| mallory.creates(one))).await;

    let before = reads(&scene).await;
    let web = format!("{deployments}/web");
    for os in ["windows", "linux"].iter().cycle().take(FLIPS - 1).chain(&["windows"]) {
        let flipped = json!({"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/os": os}}}}});
        mallory.request(Method::PATCH, &web, &flipped).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    scene.wait_for_event(&mallory.namespace, "kept-7", "AddressMisplaced").await;
    scene.wait_for_event(&mallory.namespace, "large-1", "AddressMisplaced").await;
    scene.wait_for_event(&mallory.namespace, "asked-1", "AddressMisplaced").await;
    let read = reads(&scene).await - before;
    assert!(
        read <= LARGE + ASKED,
        "{read} reads of {KEPT} Services that stay and {LARGE} + {ASKED} that are too large"
    );
    let events = scene.events(&mallory.namespace).await;
    let events = events.iter().filter(|event| event["reason"] == "AddressMisplaced").count();
    let all = KEPT + LARGE + ASKED;
    assert!(events <= 4 * all, "{events} Events about {all} Services");

    // The last change of the workload counts, however many there were.
    mallory.annotates("kept-7", json!({"clusterip-policy/move": null})).await.unwrap();
    eventually("the Service to move", async || {
        let now = stored(&scene.admin(), &mallory.namespace, "kept-7").await?;
        addresses(&now).first().is_some_and(|address| within(*address, WINDOWS)).then_some(())
    })
    .await;
}
