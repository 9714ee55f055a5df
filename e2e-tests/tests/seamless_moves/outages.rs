//! The API server or etcd is unavailable in the middle of seamless moves.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use serde_json::json;

use super::support::{SEAMLESS, Stage, with_controller_manager};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::eventually;
use crate::support::fault_proxy::{Fault, Proxy, Seen};
use crate::support::move_helpers::{addresses, but_addresses};

const SERVICES: usize = 4;
/// How long the outage lasts.
const OUTAGE: Duration = Duration::from_secs(3);

/// What is unavailable, and the write of a move after which it becomes unavailable.
struct Outage {
    name: &'static str,
    stop: fn(&ControlPlane),
    start: fn(&ControlPlane),
    after: fn(&Seen) -> bool,
}

/// A Service gives its old address back.
fn releases(seen: &Seen) -> bool {
    seen.method == Method::PUT
        && !seen.is_dry_run()
        && seen.path.contains("/services/web-")
        && seen.body["spec"]["type"] == "ExternalName"
}

/// A temporary Service gives the new address back.
fn deletes_new(seen: &Seen) -> bool {
    seen.method == Method::DELETE && seen.path.contains("/services/clusterip-new-")
}

/// Moves Services during an outage, and returns what is wrong after it.
async fn during(plane: &Arc<ControlPlane>, outage: Outage) -> Vec<String> {
    let Outage { name, stop, start, after } = outage;
    let stage = Stage::on(plane, name).await;
    let mut before = Vec::new();
    for nth in 0..SERVICES {
        before.push(stage.service(&format!("web-{nth}"), json!({})).await);
    }
    let proxy = Proxy::start(plane).await;
    let gate = proxy.on(after, Fault::PauseAfter);
    let child = stage.command_through(&proxy, &SEAMLESS).spawn().unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output());
    gate.arrived().await;
    tokio::task::block_in_place(|| {
        stop(plane);
        std::thread::sleep(OUTAGE);
        start(plane);
    });
    gate.release();
    ended.await.unwrap().unwrap();
    eventually(&format!("{name}: the end of the moves"), async || {
        if !stage.left().await.is_empty() {
            stage.run(&SEAMLESS).await;
        }
        stage.left().await.is_empty().then_some(())
    })
    .await;
    let mut wrong = Vec::new();
    for before in before {
        let service = before["metadata"]["name"].as_str().unwrap();
        let now = stage.stored(service).await;
        let at = addresses(&now);
        if at != addresses(&before) && !(at.len() == 1 && at.iter().all(|address| stage.is_in_pool(address))) {
            wrong.push(format!("{name}: {service} is at {at:?}"));
        }
        if but_addresses(&now) != but_addresses(&before) {
            wrong.push(format!("{name}: {now} instead of {before}"));
        }
    }
    wrong
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_end_after_an_outage() {
    let plane = Arc::new(with_controller_manager());
    let outages = [
        Outage {
            name: "api-server-in-swap-1",
            stop: ControlPlane::stop_api_server,
            start: ControlPlane::start_api_server,
            after: releases,
        },
        Outage {
            name: "api-server-in-swap-2",
            stop: ControlPlane::stop_api_server,
            start: ControlPlane::start_api_server,
            after: deletes_new,
        },
        Outage {
            name: "etcd-in-swap-2",
            stop: ControlPlane::stop_etcd,
            start: ControlPlane::start_etcd,
            after: deletes_new,
        },
    ];
    let mut wrong = Vec::new();
    for outage in outages {
        wrong.extend(during(&plane, outage).await);
    }
    assert_eq!(wrong, [""; 0]);
}
