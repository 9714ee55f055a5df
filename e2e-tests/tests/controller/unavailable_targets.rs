//! Moves whose pool is full, or whose target address another Service takes.

use axum::http::Method;
use clusterip_core::annotations::MOVING_ANNOTATION;
use serde_json::{Value, json};

use super::MOVE;
use crate::support::cluster::Cluster;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{is_step, path, send};

#[tokio::test]
async fn full_pool_is_reported_until_an_address_is_free() {
    const FULL: &str =
        "AddressMisplaced: it lies in pool linux, and belongs to pool tiny: labels of the Service; it stays: ";
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let place = cluster.place("full").await;
    for last in 0..4 {
        let spec = json!({"clusterIP": format!("172.21.4.{last}")});
        place.service_named(&format!("tiny-{last}"), json!({"labels": {"size": "tiny"}}), spec).await;
    }
    place.service_at("web", [172, 21, 0, 60], json!({"labels": {"size": "tiny"}}), json!({})).await;
    let _server = cluster.server(&proxy, &json!({})).arg("--no-webhook").start().await;
    let event = eventually("the full pool to be reported", async || place.events("web").await.into_iter().next()).await;
    assert!(event.starts_with(FULL) && event.contains("full"), "{event}");
    // A requested move is also reported, once.
    place.annotate(MOVE, "now").await;
    place.comes_to(&["linux", &event, &event]).await;
    send(&place.client, Method::DELETE, &path(&place.namespace, "tiny-2"), None).await;
    let moved = "AddressMoved: moved from linux to tiny: it lies in pool linux, and belongs to pool tiny: labels of the Service";
    place.comes_to(&["tiny", &event, &event, moved]).await;
    assert_eq!(place.web().await["spec"]["clusterIP"], "172.21.4.2");
}

/// Another Service takes the target address just before or while the moved Service has no address.
#[tokio::test]
async fn target_that_is_taken_during_the_move_is_replaced() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let _server = cluster.server(&proxy, &json!({})).arg("--no-webhook").start().await;
    let rows = ["release", "assign"];
    for step in rows {
        let place = cluster.place(&format!("taken-before-{step}")).await;
        let name = place.namespace.clone();
        place.workload("linux").await;
        let gate = proxy.on(is_step(&name, "web", step), Fault::PauseBefore);
        place.service_at("web", [172, 21, 1, 20], json!({}), json!({})).await;
        gate.arrived().await;
        let writes = proxy.writes();
        let write = writes.iter().rev().find(|seen| is_step(&name, "web", step)(seen)).unwrap();
        let journal = write.body["metadata"]["annotations"][MOVING_ANNOTATION].as_str().unwrap();
        let target = serde_json::from_str::<Value>(journal).unwrap()["to"][0].clone();
        place.service_named("thief", json!({}), json!({"clusterIP": target})).await;
        gate.release();
        let event = eventually("the Event of the move", async || place.events("web").await.into_iter().next()).await;
        let begin = "AddressMoved: moved from windows to linux: it lies in pool windows, and belongs to pool linux: kubernetes.io/os=linux (Deployment web); linux is not available: ";
        assert!(event.starts_with(begin) && event.contains("provided IP is already allocated"), "{step}: {event}");
        let web = place.web().await;
        assert_ne!(web["spec"]["clusterIP"], target, "{step}");
        place.comes_to(&["linux", &event]).await;
    }
}
