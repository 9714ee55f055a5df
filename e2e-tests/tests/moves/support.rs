//! Starts moves that must succeed, and writes manifests of Services.

use std::net::IpAddr;

use clusterip_moves::outcome::Outcome;
use kube::Client;
use serde_json::{Value, json};

use crate::support::move_helpers::{These, addresses, mover, order, stored};

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
