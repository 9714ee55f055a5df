//! Starts moves that must succeed, and writes manifests of Services.

use std::net::IpAddr;

use axum::http::Request;
use clusterip_moves::outcome::Outcome;
use kube::Client;
use serde_json::{Value, json};

use crate::support::move_helpers::{These, addresses, mover, order, path, stored};

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
    let path = format!("{}?fieldManager={manager}&force=false", path(text("namespace"), text("name")));
    let request = Request::patch(path).header("content-type", "application/apply-patch+yaml");
    let body = serde_json::to_vec(manifest).unwrap();
    client.request::<Value>(request.body(body).unwrap()).await.unwrap_or_else(|error| panic!("{manifest}: {error}"));
}
