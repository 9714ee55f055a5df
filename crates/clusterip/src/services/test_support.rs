//! Evaluators and reconcilers for tests of Services.

use std::sync::Arc;

use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::live_settings::check_settings;
use clusterip_cluster::reservations::ledger::Ledger;
use clusterip_cluster::watch::stores::Stores;
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::controller::reconcile::Reconciler;
use super::misplaced::Allowed;
use crate::server_metrics::ServerMetrics;

pub(super) const ALLOWED: Allowed = Allowed { any: true, ready: false, seamless: None, load_balancers: false };

/// A client of an address at which no server listens.
pub(crate) fn client() -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap()
}

/// An evaluator with these settings of Services, in a cluster with these Service ranges and the Namespace `shop` alone.
pub(crate) fn evaluator(client: Client, services: Value, ranges: &[&str]) -> Evaluator {
    let metrics = ServerMetrics::new();
    let ranges: Vec<String> = ranges.iter().map(|&range| range.to_owned()).collect();
    let live = check_settings(json!({"services": services}), &ranges.into()).unwrap();
    // The settings stay readable after the sender is gone.
    let settings = watch::channel(Arc::new(live)).1;
    let stores = Stores::new(client, metrics.cluster.clone(), |_| (), |_| ());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}});
    stores.snapshot().write().unwrap().insert(&namespace);
    Evaluator::new(settings, stores, Ledger::default(), metrics.evaluation)
}

/// A reconciler in such a cluster, with the pool 10.1.0.0/16 for Windows and 10.2.0.0/16 for Linux.
pub(super) fn reconciler(client: Client) -> Arc<Reconciler> {
    let pools = json!([
        {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
        {"name": "linux", "cidrs": ["10.2.0.0/16"], "match": {"os": "linux"}},
    ]);
    let evaluator = evaluator(client.clone(), json!({"pools": pools}), &["10.0.0.0/8"]);
    Arc::new(Reconciler::new(evaluator, client, "clusterip", ServerMetrics::new().services, ALLOWED))
}
