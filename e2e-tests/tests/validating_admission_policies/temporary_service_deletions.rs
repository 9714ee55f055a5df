//! Users delete temporary Services of seamless moves only so that they are gone at once.

use kube::api::{DeleteParams, DynamicObject, PostParams};

use super::support::editor;
use super::temporary_services::{NOT_BY_CLUSTERIP, deployed, in_force, new, ordinary, outcome};
use crate::support::service_webhook_rules::{assert_calls, call, services};

const WAITS: &str = "temporary-services: Service NAME is temporary and must be gone at once, so its deletion cannot \
                     wait for other objects; delete it with the propagation policy Background";

#[tokio::test]
async fn temporary_service_is_deleted_only_at_once() {
    struct Deletion {
        name: &'static str,
        service: fn() -> DynamicObject,
        parameters: DeleteParams,
        expected: &'static str,
    }
    let plane = deployed().await;
    let namespace = plane.namespace("policies-deletion").await;
    let mallory = services(editor(&plane, &namespace).await, &namespace);
    let admin = services(plane.client(), &namespace);
    in_force(&mallory, NOT_BY_CLUSTERIP).await;
    let deletion = |name, service, parameters: DeleteParams, expected| Deletion {
        name,
        service,
        parameters: parameters.dry_run(),
        expected,
    };
    let deletions = [
        deletion("in the background", new, DeleteParams::background(), "allowed"),
        // Objects that mallory creates, and never deletes, would keep the Service and its address.
        deletion("in the foreground", new, DeleteParams::foreground(), WAITS),
        deletion("without the objects that it owns", new, DeleteParams::orphan(), WAITS),
        deletion("of another Service in the foreground", ordinary, DeleteParams::foreground(), "allowed"),
    ];
    let mut calls = Vec::new();
    for Deletion { name, service, parameters, expected } in deletions {
        let stored = admin.create(&PostParams::default(), &service()).await.unwrap();
        let stored_name = stored.metadata.name.unwrap();
        let outcome = outcome(mallory.delete(&stored_name, &parameters).await);
        calls.push(call(format!("mallory: deletion {name}"), outcome, expected));
        admin.delete(&stored_name, &DeleteParams::default()).await.unwrap();
    }
    assert_calls(calls);
}
