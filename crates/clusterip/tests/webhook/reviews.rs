//! Reviews of creates without a server and without a cluster, and what they reserve.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clusterip::server_metrics::ServerMetrics;
use clusterip::webhook::admission::{Admission, OnError, Reviewer as _};
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::live_settings::check_settings;
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::reservations::replica_claims::Claims;
use clusterip_cluster::snapshot::Snapshot;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::watch::stores::Stores;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::watch;

pub struct Webhook {
    pub admission: Admission,
    pub metrics: ServerMetrics,
    stores: Stores,
    ledger: Ledger,
    /// The time since the beginning.
    seconds: Arc<AtomicU64>,
}

impl Webhook {
    pub fn new(explicit: &str) -> Self {
        Self::with_reasons(explicit, false)
    }

    /// A webhook that also annotates Services with the reason for their address, if `annotates` is set.
    pub fn with_reasons(explicit: &str, annotates: bool) -> Self {
        let document = json!({
            "services": {"explicit": explicit, "annotateReason": annotates, "pools": [
                {"name": "gold", "cidrs": ["10.0.3.0/24"],
                 "match": {"namespaces": ["shop"], "serviceSelector": {"matchLabels": {"tier": "gold"}}}},
                {"name": "own", "cidrs": ["10.0.1.0/24"], "match": {"namespaces": ["shop"]}},
                {"name": "other", "cidrs": ["10.0.2.0/24"], "match": {"namespaces": ["bank"]},
                 "reservations": [{"address": "10.0.2.9", "namespace": "bank", "name": "web"}]},
            ]},
            "external": {"pools": [{"name": "lan", "cidrs": ["10.9.0.1-10.9.0.9"]}]},
        });
        Self::with_settings(document, OnError::Deny, false)
    }

    /// A webhook with these settings, which claims addresses if `claims` is set: in vain, because it has no API server.
    pub fn with_settings(document: Value, on_error: OnError, claims: bool) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        // No server listens at this address.
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let live = check_settings(document, &ServiceRanges::default()).unwrap();
        let metrics = ServerMetrics::new();
        let (_, settings) = watch::channel(Arc::new(live));
        let stores = Stores::new(client.clone(), metrics.cluster.clone(), |_| (), |_| ());
        let (begin, seconds) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let clock = Arc::clone(&seconds);
        let ledger = Ledger::with_clock(move || begin + Duration::from_secs(clock.load(Ordering::Relaxed)));
        let mut evaluator = Evaluator::new(settings, stores.clone(), ledger.clone(), metrics.evaluation.clone());
        evaluator.claims =
            claims.then(|| Claims::new(client, "clusterip", "a", ledger.clone(), metrics.claims.clone()));
        let admission = Admission::new(evaluator, metrics.admission.clone(), on_error);
        Self { admission, metrics, stores, ledger, seconds }
    }

    /// Adds a Service to those that the webhook knows.
    pub fn add_service(&self, namespace: &str, name: &str) {
        let metadata = json!({"namespace": namespace, "name": name});
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
        Snapshot::insert_in(self.stores.snapshot(), &service);
    }

    /// Reviews a create. Returns the code and the message of its refusal.
    pub fn create(&self, namespace: &str, metadata: Value, spec: Value) -> Option<(u16, String)> {
        let status = self.admission.review(&created(namespace, metadata, spec)).status?;
        Some((status.code.unwrap(), status.message.unwrap()))
    }

    pub fn reserved(&self) -> Vec<String> {
        let reservations = self.ledger.reservations().into_iter();
        reservations
            .map(|(address, owner)| format!("{address} {:?}", (&owner.service.namespace, &owner.service.name)))
            .collect()
    }

    pub fn wait_until(&self, seconds: u64) {
        self.seconds.store(seconds, Ordering::Relaxed);
    }
}

/// The request of a create of a Service.
pub fn created(namespace: &str, metadata: Value, spec: Value) -> Value {
    json!({
        "uid": "7",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "namespace": namespace,
        "name": metadata["name"],
        "operation": "CREATE",
        "object": {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec},
    })
}
