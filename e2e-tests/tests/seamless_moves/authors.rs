//! What the author of a Service can do during its seamless move.

use std::time::{Duration, Instant};

use axum::http::Method;
use serde_json::{Map, Value, json};

use super::servers::{carry_out_settings, moves, server};
use super::support::{Stage, of_servers, temporary_of};
use crate::support::eventually::{eventually, eventually_within};
use crate::support::fault_proxy::{Proxy, Seen};
use crate::support::move_helpers::{addresses, path, send};

/// The longest pause between two tries of a move is a minute.
const RETRIED: Duration = Duration::from_secs(120);

async fn changes(stage: &Stage, change: Value) {
    send(&stage.client, Method::PATCH, &path(&stage.namespace, "web"), Some(&change)).await.unwrap();
}

/// Waits until `new` exists, and the author still may prevent the swaps.
async fn begins(stage: &Stage) {
    eventually("the preparation", async || temporary_of(stage, "new").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn author_keeps_no_address_causes_no_requests_and_hides_nothing() {
    let plane = of_servers().await;
    let proxy = Proxy::start(&plane).await;
    let main = Stage::on(&plane, "authors").await;
    let mut of_authors = Vec::new();
    for name in ["grown-early", "grown-late", "changed", "released", "replaced-by-its-author"] {
        of_authors.push(Stage::on(&plane, name).await);
    }
    main.has_a_pool_for(&of_authors.iter().collect::<Vec<_>>());
    carry_out_settings(&main, &proxy).await;
    let mut stages = Vec::new();
    for stage in of_authors {
        let uid = stage.service("web", json!({})).await["metadata"]["uid"].as_str().unwrap().to_owned();
        let records = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", main.server);
        stages.push((stage, format!("{records}/clusterip-move-{uid}")));
    }
    let [(early, early_record), (late, late_record), (changed, _), (released, _), (replaced, replaced_record)] =
        stages.as_slice()
    else {
        unreachable!()
    };
    // More bytes than the server reads, and not more than the API server stores.
    let key = |nth: usize| format!("{}.{}.{}.example.com/{nth:063}", "a".repeat(60), "b".repeat(60), "c".repeat(60));
    let labels: Map<_, _> = (0..1300).map(|nth| (key(nth), Value::from("v"))).collect();
    let grown = json!({"metadata": {"labels": labels}});

    let server = server(&main, &proxy, "20").start().await;
    begins(early).await;
    changes(early, grown.clone()).await;
    begins(changed).await;
    changes(changed, json!({"metadata": {"labels": {"changed": "1"}}})).await;
    moves(late).await;
    changes(late, grown.clone()).await;
    moves(replaced).await;
    let old = temporary_of(replaced, "old").await.unwrap();
    let own_path = old.replace("-old-", "-new-");
    let name = own_path.rsplit('/').next().unwrap();
    let own = json!({"metadata": {"name": name}, "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    let services = format!("/api/v1/namespaces/{}/services", replaced.namespace);
    send(&replaced.client, Method::POST, &services, Some(&own)).await.unwrap();
    send(&replaced.client, Method::PATCH, &own_path, Some(&grown)).await.unwrap();
    moves(released).await;
    let release = json!({"spec": {"type": "ExternalName", "externalName": "moving.invalid", "clusterIP": null,
        "clusterIPs": null}});
    let assigns = |request: &Seen| {
        !request.is_dry_run()
            && request.path == path(&released.namespace, "web")
            && request.body["spec"]["type"] == "ClusterIP"
    };
    let assigned = || proxy.writes().iter().filter(|request| assigns(request)).count();
    let (before, begin) = (assigned(), Instant::now());
    // On a busy machine, fewer changes are made: all of them within a minute of the move.
    while begin.elapsed() < Duration::from_secs(5) {
        changes(released, release.clone()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(assigned(), before, "it moved less than a minute before");

    eventually("the deletion of the temporary Services of a changed Service", async || {
        temporary_of(changed, "new").await.is_none().then_some(())
    })
    .await;
    eventually("the changed Service to count as misplaced", async || {
        let (_, metrics) = server.get("/metrics").await?;
        metrics.contains("clusterip_misplaced_services{reason=\"brake\"} 1").then_some(())
    })
    .await;
    for (stage, record) in [(early, early_record), (late, late_record)] {
        let is_recorded = async || send(&stage.client, Method::GET, record, None).await.is_some();
        eventually_within(RETRIED, "the deletion of the temporary Services of a large Service", async || {
            stage.left().await.is_empty().then_some(())
        })
        .await;
        assert!(is_recorded().await, "its move goes on when it can be read again");
        changes(stage, json!({"metadata": {"labels": null}})).await;
        let what = "the end of the move of a Service that can be read again";
        eventually_within(RETRIED, what, async || (!is_recorded().await).then_some(())).await;
    }
    eventually_within(
        RETRIED,
        "the end of the move beside a large Service with the name of a temporary one",
        async || {
            let has_ended = send(&replaced.client, Method::GET, replaced_record, None).await.is_none();
            (has_ended && replaced.left().await.is_empty()).then_some(())
        },
    )
    .await;
    assert!(replaced.stored(name).await["metadata"]["labels"].is_object(), "the Service of the user stays");
    eventually("the end of the move of the released Service", async || {
        let is_there =
            addresses(&released.stored("web").await).first().is_some_and(|address| released.is_in_pool(address));
        (is_there && released.left().await.is_empty()).then_some(())
    })
    .await;
}
