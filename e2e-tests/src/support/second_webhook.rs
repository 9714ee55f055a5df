//! Another mutating webhook, whose answers a test chooses.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum_server::tls_rustls::RustlsConfig;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::webhook::issuer::CaCertificate;
use clusterip_cluster::admission_review::AdmissionResponse;
use clusterip_core::Response;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::eventually::eventually;
use super::webhook_cluster::{WebhookCluster, service};

/// What the webhook does with the object of a request.
pub enum Verdict {
    /// Admits the object unchanged.
    Keep,
    /// Changes the object to this.
    Change(Value),
    /// Refuses the request.
    Refuse,
}

/// The message of a refusal.
pub const REFUSAL: &str = "not with me";

fn answer(verdict: Verdict, body: &[u8]) -> Vec<u8> {
    let mut review: Value = serde_json::from_slice(body).unwrap();
    let answer = match verdict {
        Verdict::Keep => Response { accepted: true, ..Response::default() },
        Verdict::Change(object) => Response { accepted: true, mutated_object: Some(object), ..Response::default() },
        Verdict::Refuse => Response { message: Some(REFUSAL.to_owned()), code: Some(403), ..Response::default() },
    };
    let response = AdmissionResponse {
        audit_annotations: Some(BTreeMap::new()),
        ..AdmissionResponse::new(&review["request"], answer).unwrap()
    };
    review["response"] = serde_json::to_value(response).unwrap();
    review.as_object_mut().unwrap().remove("request");
    review.to_string().into_bytes()
}

/// A webhook server that runs until the test ends.
pub struct Endpoint {
    /// The URL of the webhook.
    pub url: String,
    /// The CA bundle for the webhook configuration.
    pub ca_bundle: String,
    /// The number of calls.
    pub calls: Arc<AtomicUsize>,
}

/// Starts a webhook server without registering it.
pub async fn endpoint(verdict: impl Fn(Value) -> Verdict + Send + Sync + 'static) -> Endpoint {
    let authority = CaCertificate::generate(Timestamp::now()).unwrap();
    let leaf = authority.issue(&["127.0.0.1".to_owned()], Timestamp::now()).unwrap();
    let (certificate, key) = (leaf.certificate.as_bytes().to_vec(), leaf.key.as_bytes().to_vec());
    let tls = RustlsConfig::from_pem(certificate, key).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("https://{}/mutate", listener.local_addr().unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    let (counted, verdict) = (Arc::clone(&calls), Arc::new(verdict));
    let review = move |body: Bytes| {
        counted.fetch_add(1, Ordering::Release);
        let verdict = Arc::clone(&verdict);
        // Unlike our own server, it reads whole objects. A verdict may block.
        let answered = tokio::task::spawn_blocking(move || {
            let review: Value = serde_json::from_slice(&body).unwrap();
            answer(verdict(review["request"]["object"].clone()), &body)
        });
        async move { answered.await.unwrap() }
    };
    let router = Router::new().fallback(review).layer(DefaultBodyLimit::disable());
    let server = axum_server::from_tcp_rustls(listener, tls).unwrap();
    tokio::spawn(server.serve(router.into_make_service()));
    Endpoint { url, ca_bundle: STANDARD.encode(&authority.certificate), calls }
}

/// Starts and registers a webhook for the Services that are created in a namespace, until the test ends. It is called
/// after ours.
pub async fn serve(
    cluster: &WebhookCluster,
    namespace: &str,
    verdict: impl Fn(Value) -> Verdict + Send + Sync + 'static,
) {
    let Endpoint { url, ca_bundle, calls } = endpoint(verdict).await;
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        // The API server calls webhooks in the order of the names of their configurations.
        "metadata": {"name": format!("later-{namespace}")},
        "webhooks": [{
            "name": "later.example.com",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": url, "caBundle": ca_bundle},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 30,
        }],
    });
    cluster.plane.apply(&configuration.to_string()).await;
    eventually("the API server to call the other webhook", async || {
        let _ = cluster.dry_run(namespace, &service("probe", json!({}))).await;
        (calls.load(Ordering::Acquire) > 0).then_some(())
    })
    .await;
}
