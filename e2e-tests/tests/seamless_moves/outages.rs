//! The API server and etcd are unavailable in the middle of seamless moves.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use futures::future::join_all;
use serde_json::json;

use super::support::{SEAMLESS, Stage, with_controller_manager};
use crate::support::command::ended;
use crate::support::fault_proxy::{Fault, Proxy, Seen};

const SERVICES: usize = 4;
/// How long an outage lasts.
const OUTAGE: Duration = Duration::from_secs(3);

/// A Service gives its old address back.
fn releases(seen: &Seen) -> bool {
    seen.sets_type("ExternalName") && seen.path.contains("/services/web-")
}

/// A temporary Service gives the new address back.
fn deletes_new(seen: &Seen) -> bool {
    seen.method == Method::DELETE && seen.path.contains("/services/clusterip-new-")
}

#[tokio::test(flavor = "multi_thread")]
async fn moves_end_after_an_outage() {
    let plane = Arc::new(with_controller_manager());
    // A command for each write after which the outages begin.
    type Matches = fn(&Seen) -> bool;
    let writes = [("in-swap-1", releases as Matches), ("in-swap-2", deletes_new)];
    let mut moves = Vec::new();
    for (name, after) in writes {
        let stage = Stage::on(&plane, name).await;
        let mut before = Vec::new();
        for nth in 0..SERVICES {
            before.push(stage.service(&format!("web-{nth}"), json!({})).await);
        }
        let proxy = Proxy::start(&plane).await;
        let gate = proxy.on(after, Fault::PauseAfter);
        let command = tokio::spawn(ended(stage.command_through(&proxy, &SEAMLESS)));
        moves.push((stage, before, proxy, gate, command));
    }
    for (_, _, _, gate, _) in &moves {
        gate.arrived().await;
    }
    tokio::task::block_in_place(|| {
        plane.stop_api_server();
        std::thread::sleep(OUTAGE);
        plane.start_api_server();
        plane.stop_etcd();
        std::thread::sleep(OUTAGE);
        plane.start_etcd();
    });
    join_all(moves.into_iter().map(async |(stage, before, _proxy, gate, command)| {
        gate.release();
        command.await.unwrap();
        stage.run_until_nothing_is_left(&SEAMLESS).await;
        for before in before {
            assert_eq!(stage.wrong_since(&before).await, None, "{}", stage.namespace);
        }
    }))
    .await;
}
