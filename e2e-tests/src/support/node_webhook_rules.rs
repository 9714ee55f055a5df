//! Tests which requests for Nodes the API server sends to a webhook.

use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::eventually::eventually;
use super::service_webhook_rules::{assert_calls, call, outcome};

/// The Nodes, as this client sees them.
pub fn nodes(client: Client) -> Api<DynamicObject> {
    Api::all_with(client, &ApiResource::erase::<Node>(&()))
}

/// A Node of this operating system, with this spec.
pub fn node(name: &str, os: &str, spec: Value) -> DynamicObject {
    let mut node = DynamicObject::new(name, &ApiResource::erase::<Node>(&())).data(json!({ "spec": spec }));
    node.metadata.labels = Some([("kubernetes.io/os".to_owned(), os.to_owned())].into());
    node
}

/// A spec with this block.
pub fn block(cidr: &str) -> Value {
    json!({"podCIDR": cidr, "podCIDRs": [cidr]})
}

/// Compares which requests call a webhook with the expectation. `register` registers the webhook with an address where
/// no server answers and `failurePolicy: Fail`, so that each call fails its request. `controller` is the client of the
/// account that assigns blocks.
pub async fn only_new_pod_cidrs(user: Client, controller: Client, webhook: &str, register: impl AsyncFnOnce()) {
    let all = nodes(user);
    for (name, spec) in [("reach-empty", json!({})), ("reach-full", block("10.200.0.0/24"))] {
        all.create(&PostParams::default(), &node(name, "linux", spec)).await.unwrap();
    }
    register().await;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let create = async |spec: Value| outcome(webhook, all.create(&dry_run, &node("reach-new", "linux", spec)).await);
    eventually("the API server to call the webhook", async || {
        (create(block("10.200.9.0/24")).await == "called").then_some(())
    })
    .await;

    let patch = async |all: &Api<DynamicObject>, name: &str, patch: Value| {
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        outcome(webhook, all.patch(name, &parameters, &Patch::Merge(patch)).await)
    };
    let label = || json!({"metadata": {"labels": {"zone": "a"}}});
    let ready = || json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let status = async |name: &str| {
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        outcome(webhook, all.patch_status(name, &parameters, &Patch::Merge(ready())).await)
    };
    let spec = |cidr: &str| json!({ "spec": block(cidr) });
    let own = nodes(controller);
    let calls = vec![
        call("a kubelet registers its Node", create(json!({})).await, "not called"),
        call("created with a block", create(block("10.200.9.0/24")).await, "called"),
        call("created with podCIDR only", create(json!({"podCIDR": "10.200.9.0/24"})).await, "called"),
        call("created with podCIDRs only", create(json!({"podCIDRs": ["10.200.9.0/24"]})).await, "called"),
        call("a label, without blocks", patch(&all, "reach-empty", label()).await, "not called"),
        call("a label, with blocks", patch(&all, "reach-full", label()).await, "not called"),
        call("cordoned", patch(&all, "reach-full", json!({"spec": {"unschedulable": true}})).await, "not called"),
        call("the status", status("reach-empty").await, "not called"),
        call("the status, with blocks", status("reach-full").await, "not called"),
        call("gets a block", patch(&all, "reach-empty", spec("10.200.9.0/24")).await, "called"),
        call("gets a block of the controller", patch(&own, "reach-empty", spec("10.200.9.0/24")).await, "not called"),
    ];
    assert_calls(calls);
}
