//! What others notice of a tenant whose Services take long to evaluate, because they select many large workloads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Method;
use futures::future::join_all;
use serde_json::{Value, json};

use super::support::{LINUX, Pace, Scene, Tenant};
use crate::support::move_helpers::path;
use crate::support::webhook_cluster::{addresses, annotated, service, within};
use crate::support::workloads::fill_with_inert_workloads;

/// How many requests the tenant sends at once.
const PARALLEL: usize = 32;
/// How many Services another namespace creates, one after the other.
const CREATES: usize = 12;
/// How many Services of the tenant take long, and never move.
const COSTLY: usize = 60;

fn selecting(name: &str, annotations: Value) -> Value {
    annotated(name, annotations, json!({"selector": {"app": "web"}}))
}

/// Sends dry runs that take long, one after the other, until `stop`. Returns how many were answered, and how many denied.
async fn dry_runs(scene: &Scene, tenant: &Tenant<'_>, nth: usize, stop: &AtomicBool) -> (usize, usize) {
    let taken = json!({"selector": {"app": "web"}, "clusterIP": "172.21.8.77"});
    let (mut answered, mut denied) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        // Every eighth asks for an address of another team.
        let steals = nth.is_multiple_of(8);
        let wanted = if steals { service("mine", taken.clone()) } else { selecting("any", json!({})) };
        match scene.create(&tenant.client, &tenant.namespace, &wanted, "?dryRun=All").await {
            Ok(created) => {
                let got = addresses(&created)[0];
                assert!(within(got, LINUX), "{} got {got}", tenant.namespace);
                answered += 1;
            }
            Err(error) => {
                assert!(steals || error.contains("busy: ") || error.contains("did not end"), "{error}");
                denied += 1;
            }
        }
    }
    (answered, denied)
}

/// Creates of another namespace, while tenants send as many dry runs as they can. `make bench-cluster` measures how long
/// they take.
async fn creates_are_placed_during_dry_runs(scene: &Scene, neighbour: &str, tenants: &[Tenant<'_>]) {
    let stop = AtomicBool::new(false);
    let load = tenants.iter().flat_map(|tenant| {
        let stop = &stop;
        (0..PARALLEL).map(move |nth| dry_runs(scene, tenant, nth, stop))
    });
    let creates = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let admin = scene.admin();
        for nth in 0..CREATES {
            let wanted = service(&format!("created-{nth}"), json!({}));
            let created = scene.create(&admin, neighbour, &wanted, "").await.unwrap();
            assert!(within(addresses(&created)[0], LINUX), "created-{nth} is not placed: {created}");
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (results, ()) = tokio::join!(join_all(load), creates);
    let answered: usize = results.iter().map(|(answered, _)| answered).sum();
    let denied: usize = results.iter().map(|(_, denied)| denied).sum();
    assert!(answered > 0 && denied > 0, "{answered} dry runs were answered and {denied} denied");
}

/// Moves of another namespace, during 8 changes a second of the labels of Services that never move.
async fn moves_begin_during_changes(scene: &Scene, neighbour: &str, mallory: &Tenant<'_>, usual: Pace) {
    let stop = AtomicBool::new(false);
    let attack = async {
        let mut nth = 0;
        while !stop.load(Ordering::Relaxed) {
            let patch = json!({"metadata": {"labels": {"nth": nth.to_string()}}});
            let path = path(&mallory.namespace, &format!("costly-{}", nth % COSTLY));
            mallory.request(Method::PATCH, &path, &patch).await.ok();
            nth += 1;
            tokio::time::sleep(Duration::from_millis(125)).await;
        }
    };
    let measured = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let pace = scene.pace(neighbour, "during").await;
        stop.store(true, Ordering::Relaxed);
        pace
    };
    let ((), pace) = tokio::join!(attack, measured);
    eprintln!("moves of a neighbour: {pace:?}, before {usual:?}");
    pace.is_at_most_delayed(usual);
}

/// Creates, moves, and a change of the settings that moves Services of another namespace, one after the other.
#[tokio::test]
async fn others_are_not_delayed_by_expensive_services() {
    let scene = Scene::start().await;
    let neighbour = scene.plane.namespace("neighbour").await;
    let usual = scene.pace(&neighbour, "before").await;
    let mut tenants = Vec::new();
    for name in ["mallory-a", "mallory-b", "mallory-c", "mallory-d"] {
        tenants.push(scene.tenant(name).await);
    }
    join_all(tenants.iter().map(|tenant| fill_with_inert_workloads(&tenant.client, &tenant.namespace))).await;
    creates_are_placed_during_dry_runs(&scene, &neighbour, &tenants).await;

    let mallory = &tenants[0];
    for nth in 0..COSTLY {
        mallory.creates(&selecting(&format!("costly-{nth}"), json!({"clusterip-policy/move": "never"}))).await;
    }
    moves_begin_during_changes(&scene, &neighbour, mallory, usual).await;

    let shop = scene.plane.namespace("shop").await;
    for nth in 0..3 {
        let created =
            scene.create(&scene.admin(), &shop, &service(&format!("web-{nth}"), json!({})), "").await.unwrap();
        assert!(within(addresses(&created)[0], LINUX), "{created}");
    }
    let pace = scene.pace_to_blue(&shop, (0..3).map(|nth| format!("web-{nth}"))).await;
    eprintln!("the moves of another namespace after the change of the settings: {pace:?}");
    pace.is_at_most_delayed(usual.times(3));
}
