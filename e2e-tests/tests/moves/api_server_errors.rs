//! The API server fails in a request of a move.

use axum::http::Method;
use serde_json::json;

use super::support::{again, moved};
use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{
    These, addresses, but_addresses, create, delete, fresh, is_step, mover, order, path, plane, send,
};

#[tokio::test]
async fn api_server_faults_are_retried() {
    let plane = plane().await;
    let client = plane.client();
    let namespace = plane.namespace("faults").await;
    let proxy = Proxy::start(&plane).await;
    let answer = |code, reason| Fault::Answer(code, reason, "a fault of the test".to_owned());
    let faults = [
        ("away", answer(503, "ServiceUnavailable")),
        ("broken", answer(500, "InternalError")),
        ("busy", answer(429, "TooManyRequests")),
        ("conflict", answer(409, "Conflict")),
        ("cut-before", Fault::CutBefore),
        ("cut-after", Fault::CutAfter),
    ];
    let [to, _] = fresh();
    for at in ["try", "release", "assign", "status", "cleanup"] {
        for (fault, what) in &faults {
            let name = format!("{fault}-{at}");
            create(&client, &namespace, &name, json!({"type": "LoadBalancer", "ports": [{"port": 80}]})).await;
            let status = json!({"status": {"loadBalancer": {"ingress": [{"hostname": "example.com"}]}}});
            let before = send(&client, Method::PATCH, &format!("{}/status", path(&namespace, &name)), Some(&status))
                .await
                .unwrap();
            let gate = proxy.on_nth(0, 2, is_step(&namespace, &name, at), what.clone());
            let outcome = mover(proxy.client()).start(&order(&before, &[to]), None, &These(vec![])).await;
            assert_eq!(outcome.unwrap(), moved(&addresses(&before), &[to]), "{name}");
            assert!(gate.count() > 0, "{name}: the fault did not occur");
            assert_eq!(but_addresses(&again(&client, &before).await), but_addresses(&before), "{name}");
            delete(&client, &namespace, &name).await;
        }
    }
}
