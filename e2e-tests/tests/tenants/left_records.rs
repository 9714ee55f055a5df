//! The records of moves that can't end, because their author makes the API server refuse the last step.

use std::time::Duration;

use axum::http::Method;
use serde_json::json;
use tokio::time::timeout;

use super::support::{LOST, MOVING, Scene, Tenant};
use crate::support::eventually::eventually_within;
use crate::support::move_helpers::{path, send};
use crate::support::webhook_cluster::annotated;

const ATTEMPTS: usize = 5;

impl Tenant<'_> {
    /// Makes the API server refuse the end of the move of a new Service. Returns the UID of the Service.
    async fn breaks_a_move(&self, name: &str) -> String {
        let linux = annotated(name, json!({"clusterip-policy/os": "linux"}), json!({}));
        let service = path(&self.namespace, name);
        // The API server refuses this, except while the Service is of type ExternalName.
        let without_ports = json!({"spec": {"ports": null}});
        let removes_ports = async || while self.request(Method::PATCH, &service, &without_ports).await.is_err() {};
        // On a busy machine, the Service may have moved between two requests.
        for _ in 0..ATTEMPTS {
            let created = self.creates(&linux).await;
            let misplaces = async {
                self.annotates(name, json!({"clusterip-policy/os": "windows"})).await.unwrap();
                std::future::pending::<()>().await;
            };
            let breaks = async {
                tokio::select! {
                    () = removes_ports() => {}
                    () = removes_ports() => {}
                    () = misplaces => {}
                }
            };
            if timeout(LOST, breaks).await.is_ok() {
                self.scene.wait_for_event(&self.namespace, name, "MoveFailed").await;
                return created["metadata"]["uid"].as_str().unwrap().to_owned();
            }
            self.request(Method::DELETE, &service, &json!({})).await.unwrap();
        }
        panic!("{name} never was of type ExternalName");
    }
}

#[tokio::test]
async fn record_of_a_failed_move_is_deleted_after_its_author_has_deleted_the_service_or_ended_the_move() {
    let scene = Scene::shared().await;
    let mallory = scene.tenant("left-records").await;
    let end = json!({"metadata": {"annotations": {MOVING: null}},
        "spec": {"type": "ClusterIP", "externalName": null, "ports": [{"port": 80}]}});
    for (name, method) in [("deleted", Method::DELETE), ("ended", Method::PATCH)] {
        let uid = mallory.breaks_a_move(name).await;
        let record = format!("/apis/apps/v1/namespaces/clusterip-policy/controllerrevisions/clusterip-move-{uid}");
        let is_recorded = async || send(&scene.admin(), Method::GET, &record, None).await.is_some();
        assert!(is_recorded().await, "{name}");
        mallory.request(method, &path(&mallory.namespace, name), &end).await.unwrap();
        let what = format!("the deletion of the record of the Service {name}");
        // It is tried again after a few seconds.
        eventually_within(LOST + Duration::from_secs(60), &what, async || (!is_recorded().await).then_some(())).await;
    }
}
