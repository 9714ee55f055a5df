//! What the account of the server can change of Services and Nodes, and which Secrets it can create.

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::support::{NAMESPACE, SERVER};
use super::temporary_services::{LABEL_OF_ANOTHER, METADATA, deployed, ordinary, outcome};
use crate::support::eventually::eventually;
use crate::support::service_webhook_rules::{assert_calls, call, services};

const NODE_FIELDS: &str = "server-updates: clusterip may change podCIDR and podCIDRs of a Node and nothing else";

const TOKEN: &str = "server-updates: clusterip may create no token of a ServiceAccount";

/// A change, as a merge patch, and its result for the account of the server.
struct Change {
    name: &'static str,
    patch: Value,
    expected: &'static str,
}

/// An owner that does not exist: the garbage collector deletes what it owns.
fn missing_owner() -> Value {
    json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "00000000-0000-0000-0000-00000000000f"}])
}

fn metadata(name: &'static str, field: &str, value: Value, expected: &'static str) -> Change {
    Change { name, patch: json!({"metadata": {field: value}}), expected }
}

fn node_spec(name: &'static str, spec: Value, expected: &'static str) -> Change {
    Change { name, patch: json!({"spec": spec}), expected }
}

#[tokio::test]
async fn stolen_token_deletes_and_keeps_no_service_and_writes_only_the_pod_cidrs_of_a_node() {
    let plane = deployed().await;
    let namespace = plane.namespace("policies-stolen").await;
    let client = plane.client_with(&plane.token(NAMESPACE, SERVER).await);
    let server = services(client.clone(), &namespace);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut calls = Vec::new();

    let mut stored = ordinary();
    stored.metadata.finalizers = Some(vec!["example.com/keep".to_owned()]);
    let stored = services(plane.client(), &namespace).create(&PostParams::default(), &stored).await.unwrap();
    let mut keeping = stored.clone();
    keeping.metadata.finalizers.get_or_insert_default().push("example.com/more".to_owned());
    eventually("the policy to be in force", async || {
        (outcome(server.replace("web", &dry_run, &keeping).await) == METADATA).then_some(())
    })
    .await;
    for Change { name, patch, expected } in [
        metadata("an owner", "ownerReferences", missing_owner(), METADATA),
        metadata("a finalizer", "finalizers", json!(["example.com/keep", "example.com/more"]), METADATA),
        metadata("no finalizer any more", "finalizers", Value::Null, METADATA),
        metadata("an annotation", "annotations", json!({"a": "b"}), "allowed"),
        metadata("another label", "labels", json!({"a": "b"}), "allowed"),
        // Only clusterip may change or relabel a temporary Service, so its owner could do neither any more.
        metadata("temporary", "labels", json!({"clusterip-policy/temporary": "old"}), LABEL_OF_ANOTHER),
    ] {
        let mut changed = serde_json::to_value(&stored).unwrap();
        json_patch::merge(&mut changed, &patch);
        let changed: DynamicObject = serde_json::from_value(changed).unwrap();
        let request = format!("a Service: {name}");
        let found = outcome(server.replace("web", &dry_run, &changed).await);
        calls.push(call(request.clone(), found, expected));
        let found = outcome(server.replace_status("web", &dry_run, &changed).await);
        calls.push(call(request + ", by its status", found, expected));
    }

    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "stolen", "labels": {"os": "linux"}},
        "spec": {"taints": [{"key": "keep", "effect": "NoSchedule"}]}});
    plane.apply(&node.to_string()).await;
    let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<Node>(&()));
    for Change { name, patch, expected } in [
        metadata("a label", "labels", json!({"node-role.kubernetes.io/control-plane": ""}), METADATA),
        metadata("no label any more", "labels", Value::Null, METADATA),
        metadata("an annotation", "annotations", json!({"a": "b"}), METADATA),
        metadata("an owner", "ownerReferences", missing_owner(), METADATA),
        metadata("a finalizer", "finalizers", json!(["example.com/keep"]), METADATA),
        node_spec("a taint", json!({"taints": [{"key": "x", "effect": "NoExecute"}]}), NODE_FIELDS),
        node_spec("no taint any more", json!({"taints": null}), NODE_FIELDS),
        node_spec("no new Pods", json!({"unschedulable": true}), NODE_FIELDS),
        node_spec("its provider", json!({"providerID": "a://b"}), NODE_FIELDS),
        node_spec("its pod CIDRs", json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}), "allowed"),
    ] {
        let found = outcome(
            nodes.patch("stolen", &PatchParams { dry_run: true, ..PatchParams::default() }, &Patch::Merge(patch)).await,
        );
        calls.push(call(format!("a Node: {name}"), found, expected));
    }

    let secrets: Api<DynamicObject> = Api::namespaced_with(client, NAMESPACE, &ApiResource::erase::<Secret>(&()));
    let annotations = json!({"kubernetes.io/service-account.name": SERVER});
    for (kind, expected) in [("Opaque", "allowed"), ("kubernetes.io/service-account-token", TOKEN)] {
        let metadata = json!({"name": "clusterip-authority", "annotations": annotations});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind});
        let found = outcome(secrets.create(&dry_run, &serde_json::from_value(secret).unwrap()).await);
        calls.push(call(format!("a Secret of type {kind}"), found, expected));
    }
    assert_calls(calls);
}
