//! Starts moves that must succeed, and writes manifests of Services.

use std::net::IpAddr;

use clusterip_core::service_key::ServiceKey;
use clusterip_moves::outcome::Outcome;
use kube::Client;
use serde_json::{Value, json};

use crate::support::fault_proxy::{Fault, Proxy};
use crate::support::move_helpers::{self, These, addresses, is_step, mover, order, path, stored};

pub const WHY: &str = "its Pods run on windows";

pub fn moved(from: &[IpAddr], to: &[IpAddr]) -> Outcome {
    Outcome::Moved { from: from.to_vec(), to: to.to_vec(), why: WHY.to_owned(), notes: Vec::new() }
}

/// Moves a Service, which must succeed, and returns the moved Service.
pub async fn move_to(client: &Client, service: &Value, to: &[IpAddr]) -> Value {
    let outcome = mover(client.clone()).start(&order(service, to), None, &These(vec![])).await.unwrap();
    assert_eq!(outcome, moved(&addresses(service), to));
    again(client, service).await
}

/// Moves a Service through a proxy, and does something while the API server waits for this step of the move. The Service
/// goes to the first of these targets, or to a later one if it is taken.
pub async fn disturbed<T>(
    proxy: &Proxy,
    before: &Value,
    at: &'static str,
    targets: &[Vec<IpAddr>],
    disturb: impl AsyncFnOnce() -> T,
) -> (Outcome, T) {
    let ServiceKey { namespace, name } = ServiceKey::of(before);
    let gate = proxy.on(is_step(&namespace, &name, at), Fault::PauseBefore);
    let (moving, order, targets) = (mover(proxy.client()), order(before, &targets[0]), These(targets.to_vec()));
    let disturb = async {
        gate.arrived().await;
        let done = disturb().await;
        gate.release();
        done
    };
    let (outcome, done) = tokio::join!(moving.start(&order, None, &targets), disturb);
    (outcome.unwrap(), done)
}

pub async fn again(client: &Client, service: &Value) -> Value {
    let text = |field: &str| service["metadata"][field].as_str().unwrap().to_owned();
    stored(client, &text("namespace"), &text("name")).await.unwrap()
}

pub fn manifest(name: &str, namespace: &str, metadata: Value, spec: Value) -> Value {
    let mut manifest = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    json_patch::merge(&mut manifest["metadata"], &metadata);
    manifest
}

/// Sends the request of `kubectl apply --server-side` with this field manager, which must not conflict.
pub async fn apply_server_side(client: &Client, manager: &str, manifest: &Value) {
    let text = |field: &str| manifest["metadata"][field].as_str().unwrap();
    let applied =
        move_helpers::apply_server_side(client, &path(text("namespace"), text("name")), manager, false, manifest).await;
    applied.unwrap_or_else(|error| panic!("{manifest}: {error}"));
}
