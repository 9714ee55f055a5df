//! The answers of the server.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use clusterip::webhook::server::Limits;
use clusterip_cluster::admission_review::AdmissionResponse;
use clusterip_cluster::http::probes::Scrapes;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Client, Method, StatusCode, Version};
use serde_json::{Value, json};

use crate::support::{MAX_WAIT, Running, allowed, answer, backend, review};

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
    let ready = Arc::new(AtomicBool::new(false));
    let mut backend = backend(|_| allowed());
    let known = Arc::clone(&ready);
    backend.not_ready = Arc::new(move || match known.load(Ordering::Acquire) {
        true => Vec::new(),
        false => vec!["Services are not listed yet".to_owned(), "the certificate ended".to_owned()],
    });
    backend.scrapes = Scrapes::new(|| "# TYPE moves counter\nmoves_total 7\n# EOF\n".to_owned());
    let server = Running::start(backend, Limits::default()).await;
    let ask = async |path| server.send(Method::GET, path, HeaderMap::new(), Vec::new()).await;
    assert_eq!(ask("/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(ask("/readyz").await, (503, "Services are not listed yet\nthe certificate ended\n".to_owned()));
    ready.store(true, Ordering::Release);
    assert_eq!(ask("/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(ask("/metrics").await, (200, "# TYPE moves counter\nmoves_total 7\n# EOF\n".to_owned()));
}

#[tokio::test]
async fn shutdown_is_announced_and_completes_requests_in_flight() {
    let (entered, begun) = channel();
    let (release, released) = channel();
    let released = Mutex::new(released);
    let backend = backend(move |_| {
        entered.send(()).unwrap();
        released.lock().unwrap().recv().unwrap();
        allowed()
    });
    let server = Running::start(backend, Limits::default()).await;
    let (client, url) = (server.client(), server.url("/mutate"));
    let request = client.post(url).header(CONTENT_TYPE, "application/json").body(review("1"));
    let in_flight = tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() });
    tokio::task::spawn_blocking(move || begun.recv_timeout(MAX_WAIT).unwrap()).await.unwrap();
    server.stop();
    // These requests use a new connection: a server that is stopping still answers.
    while server.send(Method::GET, "/readyz", HeaderMap::new(), Vec::new()).await.0 == 200 {}
    let found = server.send(Method::GET, "/readyz", HeaderMap::new(), Vec::new()).await;
    assert_eq!(found, (503, "stopping\n".to_owned()));
    let (client, url) = (server.client(), server.url("/healthz"));
    while client.get(&url).send().await.is_ok() {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(!in_flight.is_finished());
    release.send(()).unwrap();
    assert_eq!(in_flight.await.unwrap(), answer("1", json!({"allowed": true})));
    server.ended().await;
}
