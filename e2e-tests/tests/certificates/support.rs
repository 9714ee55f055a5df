//! A clock that the tests set, tasks that they stop, and webhook configurations that are never called.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip::webhook::authority::{Authority, Clock, service_names};
use clusterip::webhook::issuer;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A clock that the test sets.
#[derive(Clone)]
pub struct Hands(Arc<AtomicI64>);

impl Hands {
    pub fn at(time: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(time.as_second())))
    }

    pub fn now(&self) -> Timestamp {
        Timestamp::from_second(self.0.load(Ordering::Acquire)).unwrap()
    }

    pub fn pass(&self, time: SignedDuration) {
        self.0.fetch_add(time.as_secs(), Ordering::AcqRel);
    }

    pub fn clock(&self) -> Clock {
        let hands = self.clone();
        Arc::new(move || hands.now())
    }
}

pub fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

pub fn some_day() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

pub async fn open(client: &Client, namespace: &str, hands: &Hands) -> Result<Authority, Box<dyn Error + Send + Sync>> {
    Ok(Authority::open(client.clone(), namespace, service_names("clusterip", namespace), hands.clock()).await?)
}

pub fn bundle(authority: &Authority) -> String {
    authority.bundle().borrow().clone()
}

/// A task that can be stopped.
pub struct Task<T> {
    pub stop: oneshot::Sender<()>,
    pub done: JoinHandle<T>,
}

impl<T: Send + 'static> Task<T> {
    pub fn start<F: Future<Output = T> + Send + 'static>(run: impl FnOnce(Stopped) -> F) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, done: tokio::spawn(run(Stopped(stopped))) }
    }

    pub async fn stop(self) -> T {
        let _ = self.stop.send(());
        self.done.await.unwrap()
    }
}

pub struct Stopped(oneshot::Receiver<()>);

impl Stopped {
    pub async fn wait(self) {
        let _ = self.0.await;
    }
}

/// A webhook configuration that is never called, because no object has this label.
pub fn configuration(name: &str) -> Value {
    let webhook = |name: &str, bundle: Option<&str>| {
        let mut client = json!({"service": {"namespace": "x", "name": "x", "path": "/mutate", "port": 443}});
        if let Some(bundle) = bundle {
            client["caBundle"] = STANDARD.encode(bundle).into();
        }
        json!({
            "name": name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": client,
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"]}],
            "objectSelector": {"matchLabels": {"certificates-test": "never"}},
            "sideEffects": "None",
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name, "labels": {"of": "a-test"}},
        "webhooks": [webhook("one.example.com", None), webhook("two.example.com", Some(&authority_pem()))],
    })
}

pub fn authority_pem() -> String {
    issuer::CaCertificate::generate(some_day()).unwrap().certificate
}

pub fn configurations(client: &Client) -> Api<MutatingWebhookConfiguration> {
    Api::all(client.clone())
}

pub fn bundles(configuration: &MutatingWebhookConfiguration) -> Vec<String> {
    let webhooks = configuration.webhooks.iter().flatten();
    let bundles = webhooks.map(|webhook| webhook.client_config.ca_bundle.clone().unwrap_or_default().0);
    bundles.map(|bundle| String::from_utf8(bundle).unwrap()).collect()
}

/// Fails after a time that is shorter than the interval of periodic checks, so that only a watch can be in time.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), what).await.expect("the watch did not notice it in time")
}
