//! Services that are not moved, and do not change.

use std::net::IpAddr;

use axum::http::Method;
use clusterip::services::mover::MoveError;
use clusterip_moves::outcome::{Outcome, Unmoved};
use serde_json::json;

use super::support::{again, manifest};
use crate::support::move_helpers::{
    These, addresses, create, fresh, is_recorded, mover, order, patch, path, plane, resume, send, stored,
};

#[tokio::test]
async fn services_that_need_no_move_are_left_alone() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("unmoved").await;
    let ports = json!([{"port": 80}]);
    let [to, to_six] = fresh();
    let kept = create(&client, &namespace, "kept", json!({"ports": ports})).await;
    let deleting =
        manifest("deleting", &namespace, json!({"finalizers": ["example.com/keep"]}), json!({"ports": ports}));
    plane.apply(&deleting.to_string()).await;
    send(&client, Method::DELETE, &path(&namespace, "deleting"), None).await;
    create(&client, &namespace, "headless", json!({"clusterIP": "None", "ports": ports})).await;
    create(&client, &namespace, "alias", json!({"type": "ExternalName", "externalName": "example.com"})).await;
    create(&client, &namespace, "lb", json!({"type": "LoadBalancer", "ports": ports})).await;
    struct Case {
        name: &'static str,
        to: Vec<IpAddr>,
        expected: Unmoved,
    }
    let unfit = |name, why| Case { name, to: vec![to], expected: Unmoved::Unfit(why) };
    let cases = [
        Case { to: addresses(&kept), ..unfit("kept", "it already has that address") },
        unfit("deleting", "it is being deleted"),
        unfit("headless", "it is headless"),
        unfit("alias", "it is of type ExternalName"),
        unfit("lb", "it is a load balancer, which is moved only on request"),
    ];
    for Case { name, to, expected } in cases {
        let before = stored(&client, &namespace, name).await.unwrap();
        let mut order = order(&before, &to);
        order.load_balancers = false;
        let outcome = mover(client.clone()).start(&order, None, &These(vec![to])).await.unwrap();
        assert_eq!(outcome, Outcome::Unmoved(expected), "{name}");
        assert_eq!(again(&client, &before).await, before, "{name}");
    }
    let mut another = order(&kept, &[to]);
    another.uid = "another".to_owned();
    let moving = mover(client.clone());
    assert_eq!(moving.start(&another, None, &These(vec![])).await.unwrap(), Outcome::Unmoved(Unmoved::Gone));
    let error = moving.start(&order(&kept, &[to_six]), None, &These(vec![])).await.unwrap_err();
    assert!(
        matches!(&error, MoveError::Untouched(text) if text.contains("one address for each of its families")),
        "{error}"
    );
    assert_eq!(resume(&moving, &kept, &These(vec![])).await, Outcome::Unmoved(Unmoved::NotMoving));
    assert!(!is_recorded(&client, &kept).await);
    assert_eq!(again(&client, &kept).await, kept);
    patch(&client, &namespace, "deleting", json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn service_too_large_to_record_is_not_moved() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("too-large").await;
    // The API server accepts at most 262144 bytes of annotations.
    let annotations = json!({"annotations": {"example.com/filling": "x".repeat(262_100)}});
    let large = manifest("web", &namespace, annotations, json!({"ports": [{"port": 80}]}));
    let services = format!("/api/v1/namespaces/{namespace}/services");
    let before = send(&client, Method::POST, &services, Some(&large)).await.unwrap();
    let outcome = mover(client.clone()).start(&order(&before, &fresh()[..1]), None, &These(vec![])).await.unwrap();
    assert!(matches!(outcome, Outcome::Unmoved(Unmoved::TooLarge)), "{outcome:?}");
    assert_eq!(again(&client, &before).await, before);
}
