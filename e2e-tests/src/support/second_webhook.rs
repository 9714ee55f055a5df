//! Another mutating webhook, whose answers a test chooses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::webhook::issuer::Authority;
use clusterip::webhook::review::Reviewer;
use clusterip::webhook::server::{Backend, Limits, WebhookServer};
use clusterip::webhook::tls::Certificate;
use clusterip_cluster::http::status::Scrapes;
use clusterip_cluster::policy::response::AdmissionResponse;
use clusterip_core::response::Response;
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

struct Second<F> {
    calls: Arc<AtomicUsize>,
    verdict: F,
}

impl<F: Fn(Value) -> Verdict + Send + Sync + 'static> Reviewer for Second<F> {
    fn review(&self, request: &Value) -> AdmissionResponse {
        self.calls.fetch_add(1, Ordering::Release);
        let answer = match (self.verdict)(request["object"].clone()) {
            Verdict::Keep => Response { accepted: true, ..Response::default() },
            Verdict::Change(object) => Response { accepted: true, mutated_object: Some(object), ..Response::default() },
            Verdict::Refuse => Response { message: Some(REFUSAL.to_owned()), code: Some(403), ..Response::default() },
        };
        AdmissionResponse {
            audit_annotations: Some(BTreeMap::new()),
            ..AdmissionResponse::new(request, answer).unwrap()
        }
    }
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
    let authority = Authority::generate(Timestamp::now()).unwrap();
    let leaf = authority.issue(&["127.0.0.1".to_owned()], Timestamp::now()).unwrap();
    let certificate = Certificate::from_pem(leaf.certificate.as_bytes(), leaf.key.as_bytes()).unwrap();
    let limits = Limits { reviews: 16, ..Limits::default() };
    let server = WebhookServer::bind(([127, 0, 0, 1], 0).into(), limits).await.unwrap();
    let url = format!("https://{}/mutate", server.local_addr());
    let calls = Arc::new(AtomicUsize::new(0));
    let backend = Backend {
        reviewer: Arc::new(Second { calls: Arc::clone(&calls), verdict }),
        not_ready: Arc::new(Vec::new),
        scrapes: Scrapes::new(String::new),
    };
    tokio::spawn(async move { server.run(backend, &certificate, std::future::pending()).await });
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
