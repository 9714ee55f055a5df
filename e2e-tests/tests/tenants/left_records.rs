//! The records of moves that can't end, because their author makes the API server refuse the last step.

use std::time::Duration;

use axum::http::Method;
use serde_json::json;

use super::support::MOVING;
use crate::support::cluster::Cluster;
use crate::support::eventually::{MAX_WAIT, eventually, eventually_within};
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{is_step, path, send};

#[tokio::test]
async fn record_of_a_failed_move_is_deleted_after_its_author_has_deleted_the_service_or_ended_the_move() {
    let cluster = Cluster::alone().await;
    let proxy = Proxy::start(&cluster.plane).await;
    let _server = cluster.server(&proxy, &json!({})).start().await;
    let end = json!({"metadata": {"annotations": {MOVING: null}},
        "spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]}});
    for (name, address, method) in [("deleted", 100, Method::DELETE), ("ended", 101, Method::PATCH)] {
        let place = cluster.place(name).await;
        let last_step = proxy.on(is_step(&place.namespace, "web", "assign"), Fault::PauseBefore);
        let of_linux = json!({"annotations": {"clusterip-policy/os": "linux"}});
        let created = place.service_at("web", [172, 21, 0, address], of_linux, json!({})).await;
        place.annotate("clusterip-policy/os", "windows").await;
        last_step.arrived().await;
        // The API server accepts this only while the Service is of type ExternalName.
        place.change(json!({"spec": {"ports": null}})).await;
        last_step.release();
        eventually(&format!("the move of the Service {name} to fail"), async || {
            place.events("web").await.iter().any(|event| event.starts_with("MoveFailed")).then_some(())
        })
        .await;

        let uid = created["metadata"]["uid"].as_str().unwrap();
        let records = format!("/apis/apps/v1/namespaces/{}/controllerrevisions", cluster.namespace);
        let record = format!("{records}/clusterip-move-{uid}");
        let is_recorded = async || send(&cluster.client, Method::GET, &record, None).await.is_some();
        assert!(is_recorded().await, "{name}");
        send(&cluster.client, method, &path(&place.namespace, "web"), Some(&end)).await.unwrap();
        let what = format!("the deletion of the record of the Service {name}");
        // It is tried again after a few seconds.
        eventually_within(MAX_WAIT + Duration::from_secs(60), &what, async || (!is_recorded().await).then_some(()))
            .await;
    }
}
