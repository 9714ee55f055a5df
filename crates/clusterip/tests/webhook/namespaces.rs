//! The reviews of one namespace don't keep those of others waiting, and are refused before the API server stops waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clusterip::webhook::server::Limits;
use futures::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{Running, allowed, backend};

fn review_of(namespace: &str, uid: &str) -> String {
    let kind = json!({"group": "", "version": "v1", "kind": "Service"});
    let request = json!({"uid": uid, "kind": kind, "name": "web", "namespace": namespace, "operation": "CREATE"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

fn denial(text: &str) -> Option<(u64, String)> {
    let answer: Value = serde_json::from_str(text).ok()?;
    let status = answer.pointer("/response/status")?;
    Some((status["code"].as_u64()?, status["message"].as_str()?.to_owned()))
}

/// A server on which each review of the namespace `mallory` takes this long, and the number of such reviews in progress.
async fn slow_for_mallory(takes: Duration, limits: Limits) -> (Running, Arc<AtomicUsize>) {
    let most = Arc::new(AtomicUsize::new(0));
    let (noted, now) = (Arc::clone(&most), AtomicUsize::new(0));
    let review = move |request: &Value| {
        if request["namespace"] == "mallory" {
            noted.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(takes);
            now.fetch_sub(1, Ordering::SeqCst);
        }
        allowed()
    };
    (Running::start(backend(review), limits).await, most)
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_reviews_of_a_namespace_delay_no_other_and_are_denied_in_time() {
    let limits = Limits { reviews: 4, ..Limits::default() };
    let (server, most) = slow_for_mallory(Duration::from_millis(400), limits).await;
    let server = Arc::new(server);
    let slow = (0..30).map(|nth| {
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.post("/mutate?timeout=2s", review_of("mallory", &nth.to_string())).await })
    });
    let slow: Vec<_> = slow.collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for nth in 0..50 {
        let (status, text) = server.post("/mutate?timeout=2s", review_of("shop", &nth.to_string())).await;
        assert_eq!((status, denial(&text)), (StatusCode::OK, None), "{text}");
    }
    let answers = join_all(slow).await;
    let answers: Vec<(StatusCode, String)> = answers.into_iter().map(Result::unwrap).collect();
    assert!(answers.iter().all(|(status, _)| *status == StatusCode::OK), "each one gets an answer: {answers:?}");
    let denials: Vec<_> = answers.iter().filter_map(|(_, text)| denial(text)).collect();
    let message = "busy: the review did not begin within 1s";
    assert!(denials.iter().all(|denial| *denial == (429, message.to_owned())), "{denials:?}");
    assert!((1..30).contains(&denials.len()), "{}", denials.len());
    assert!(most.load(Ordering::SeqCst) <= 2, "half of the reviews");
}

#[tokio::test(flavor = "multi_thread")]
async fn review_that_does_not_end_in_time_is_denied() {
    let (server, _) = slow_for_mallory(Duration::from_secs(1), Limits::default()).await;
    let (status, text) = server.post("/mutate?timeout=500ms", review_of("mallory", "1")).await;
    let expected = Some((429, "the review did not end within 450ms".to_owned()));
    assert_eq!((status, denial(&text)), (StatusCode::OK, expected), "{text}");
}

/// Shares of memory are measured in `body.rs`.
#[tokio::test(flavor = "multi_thread")]
async fn reviews_beyond_the_memory_are_denied_at_once() {
    let limits = Limits { reviews: 2, bodies: 100_000, ..Limits::default() };
    let (server, _) = slow_for_mallory(Duration::from_millis(200), limits).await;
    let bodies: Vec<String> = (0..40).map(|nth| review_of("mallory", &nth.to_string())).collect();
    let answers = join_all(bodies.iter().map(|body| server.post("/mutate", body.clone()))).await;
    let denials: Vec<_> = answers.iter().filter_map(|(_, text)| denial(text)).collect();
    assert!(denials.len() >= 20, "{answers:?}");
    let message = "busy: waiting requests may take 100000 bytes, and those of this client take most of it";
    assert!(denials.iter().all(|denial| *denial == (429, message.to_owned())), "{denials:?}");
    server.assert_serves().await;
}

/// A client that sends reviews and resets the streams of HTTP/2 before it has the answers.
#[tokio::test(flavor = "multi_thread")]
async fn reviews_that_are_given_up_take_no_turn_of_others() {
    let limits = Limits { reviews: 2, ..Limits::default() };
    let (server, _) = slow_for_mallory(Duration::from_millis(50), limits).await;
    let resetting = server.client_builder().timeout(Duration::from_millis(20)).build().unwrap();
    for _ in 0..20 {
        let sent = (0..50).map(|nth| {
            let request = resetting.post(server.url("/mutate")).header("content-type", "application/json");
            request.body(review_of("mallory", &nth.to_string())).send()
        });
        let answered = join_all(sent).await.into_iter().filter(Result::is_ok).count();
        assert!(answered < 50);
        let (status, text) = server.post("/mutate?timeout=2s", review_of("shop", "1")).await;
        assert_eq!((status, denial(&text)), (StatusCode::OK, None), "{text}");
    }
}
