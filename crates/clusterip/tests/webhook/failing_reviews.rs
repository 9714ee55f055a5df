//! A review that panics, hangs or exceeds the limit affects only its own request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clusterip::webhook::admission::Reviewer;
use clusterip::webhook::server::{Backend, Limits};
use clusterip_cluster::admission_review::AdmissionResponse;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Running, allowed, answer, backend, hanging, review};

/// Allows everything from its second request on.
#[derive(Default)]
struct Starting(AtomicBool);

impl Reviewer for Starting {
    fn review(&self, _request: &Value) -> AdmissionResponse {
        allowed()
    }

    fn not_begun(&self) -> Option<String> {
        (!self.0.swap(true, Ordering::Relaxed)).then(|| "the cluster is being listed".to_owned())
    }
}

#[tokio::test]
async fn no_review_is_answered_while_the_cluster_is_being_listed() {
    let backend = Backend { reviewer: Arc::new(Starting::default()), ..backend(|_| allowed()) };
    let server = Running::start(backend, Limits::default()).await;
    let (status, text) = server.post("/mutate", review("7")).await;
    assert_eq!((status, text.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "the cluster is being listed\n"));
    server.assert_serves().await;
}

#[tokio::test]
async fn panicking_review_is_denied_and_the_next_one_is_served() {
    struct Case {
        name: &'static str,
        panics: fn(),
        cause: &'static str,
    }
    let rows = [
        Case { name: "with a text", panics: || panic!("no more addresses"), cause: "no more addresses" },
        Case { name: "with a made text", panics: || panic!("index {}", 7), cause: "index 7" },
        Case { name: "with something else", panics: || std::panic::panic_any(7), cause: "for an unknown reason" },
    ];
    for Case { name, panics, cause } in rows {
        let panicking = move |request: &Value| {
            if request["name"] == "web" {
                panics();
            }
            allowed()
        };
        let server = Running::start(backend(panicking), Limits { reviews: 1, ..Limits::default() }).await;
        let body = json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {"uid": "7", "namespace": "shop", "name": "web"},
        });
        let (status, text) = server.post("/mutate", body.to_string()).await;
        let message = format!("the review panicked: {cause}; see the log of clusterip");
        let denied = json!({"allowed": false, "status": {"message": message, "code": 500}});
        assert_eq!((status, serde_json::from_str(&text).unwrap()), (StatusCode::OK, answer("7", denied)), "{name}");
        server.assert_serves().await;
    }
}

#[tokio::test]
async fn review_waits_no_longer_than_the_timeout_of_its_client() {
    let (backend, mut hanging) = hanging();
    let server = Running::start(backend, Limits { reviews: 1, ..Limits::default() }).await;
    let expected = "the review did not end within 180ms\n".to_owned();
    assert_eq!(server.post("/mutate?timeout=200ms", review("hangs")).await, (StatusCode::GATEWAY_TIMEOUT, expected));
    hanging.begun().await;
    // The first review still hangs, and its client has given up.
    let expected = "busy: the review did not begin within 50ms\n".to_owned();
    let found = server.post("/mutate?x=1&timeout=0.1s", review("1")).await;
    assert_eq!(found, (StatusCode::SERVICE_UNAVAILABLE, expected));
    hanging.release();
    server.assert_serves().await;
}
