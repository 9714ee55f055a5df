//! The answers of the server.

use std::sync::Arc;
use std::time::Duration;

use clusterip::webhook::server::Limits;
use clusterip_cluster::admission_review::AdmissionResponse;
use clusterip_cluster::http::probes::Scrapes;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode, Version};
use serde_json::{Value, json};

use crate::support::{Running, allowed, answer, backend, hanging, review};

#[tokio::test]
async fn review_is_answered_with_the_uid_of_its_request() {
    struct Case {
        name: &'static str,
        client: Client,
        version: Version,
    }
    let server = Running::start(
        backend(|request| AdmissionResponse {
            warnings: Some(vec![request["object"]["metadata"]["name"].as_str().unwrap().to_owned()]),
            ..allowed()
        }),
        Limits::default(),
    )
    .await;
    let body = json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {"uid": "0b4-x", "object": {"metadata": {"name": "web"}}},
    });
    let rows = [
        Case { name: "HTTP/2", client: server.client(), version: Version::HTTP_2 },
        Case {
            name: "HTTP/1.1",
            client: server.client_builder().http1_only().build().unwrap(),
            version: Version::HTTP_11,
        },
    ];
    for Case { name, client, version } in rows {
        let request = client.post(server.url("/mutate?timeout=5s")).header(CONTENT_TYPE, "application/json");
        let response = request.body(body.to_string()).send().await.unwrap();
        let head = (response.version(), response.status(), response.headers()[CONTENT_TYPE].clone());
        assert_eq!(head, (version, StatusCode::OK, "application/json".parse().unwrap()), "{name}");
        let expected = answer("0b4-x", json!({"allowed": true, "warnings": ["web"]}));
        assert_eq!(response.json::<Value>().await.unwrap(), expected, "{name}");
    }
}

#[tokio::test]
async fn health_readiness_and_metrics_are_served() {
    let mut backend = backend(|_| allowed());
    backend.not_ready = Arc::new(|| vec!["Services are not listed yet".to_owned(), "the certificate ended".to_owned()]);
    backend.scrapes = Scrapes::new(|| "# TYPE moves counter\nmoves_total 7\n# EOF\n".to_owned());
    let server = Running::start(backend, Limits::default()).await;
    assert_eq!(server.get("/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(server.get("/readyz").await, (503, "Services are not listed yet\nthe certificate ended\n".to_owned()));
    assert_eq!(server.get("/metrics").await, (200, "# TYPE moves counter\nmoves_total 7\n# EOF\n".to_owned()));
}

#[tokio::test]
async fn shutdown_is_announced_and_completes_requests_in_flight() {
    let (backend, mut hanging) = hanging();
    let server = Running::start(backend, Limits::default()).await;
    let (client, url) = (server.client(), server.url("/mutate"));
    let request = client.post(url).header(CONTENT_TYPE, "application/json").body(review("hangs"));
    let in_flight = tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() });
    hanging.begun().await;
    assert_eq!(server.get("/readyz").await, (200, "ready\n".to_owned()));
    server.stop();
    // These requests use a new connection: a server that is stopping still answers.
    while server.get("/readyz").await.0 == 200 {}
    assert_eq!(server.get("/readyz").await, (503, "stopping\n".to_owned()));
    let (client, url) = (server.client(), server.url("/healthz"));
    while client.get(&url).send().await.is_ok() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!in_flight.is_finished());
    hanging.release();
    assert_eq!(in_flight.await.unwrap(), answer("hangs", json!({"allowed": true})));
    server.ended().await;
}
