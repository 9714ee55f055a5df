//! `deploy/external` as it is shipped: what it adds to `deploy/webhook`, which requests reach its webhook, and the
//! permissions of server and agents. `make test-external` runs both with these permissions.

use std::collections::BTreeSet;

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::deploy_webhook::{apply, disconnect, rights, set};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::documented_steps::{Operator, Step};
use crate::support::eventually::eventually;
use crate::support::service_webhook_rules::{Call, MOVING, assert_calls, outcome, service, services};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const NAMESPACE: &str = "clusterip-policy";
const AGENTS: &str = "clusterip-policy-agents";
const WEBHOOK: &str = "external.clusterip-policy.io";

/// No server answers at the Service of the webhooks.
#[tokio::test]
async fn webhook_is_called_only_for_claims_and_accounts_have_exactly_their_permissions() {
    let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
    plane.install_pools().await;
    let namespace = plane.namespace("reach").await;
    let own = services(plane.client(), &namespace);
    for (row, Update { before, .. }) in updates().iter().enumerate() {
        own.create(&PostParams::default(), &with(&format!("row-{row}"), before)).await.unwrap();
    }
    plane.kubectl(&["apply", "-k", &format!("{ROOT}/deploy/webhook")]).await.ok();
    let account = format!("{NAMESPACE}:clusterip");
    let without = [rights(&plane, &account, NAMESPACE).await, rights(&plane, &account, AGENTS).await];
    let folder = format!("{ROOT}/deploy/external");
    apply(&plane, &folder).await;
    let everywhere = ["services [] [] [get list watch update patch]", "services/status [] [] [patch]"];
    let rows: [(&str, &[&str]); 2] = [(NAMESPACE, &[]), (AGENTS, &["leases.coordination.k8s.io [] [] [list watch]"])];
    for ((namespace, more), without) in rows.into_iter().zip(without) {
        let with = rights(&plane, &account, namespace).await;
        let found: BTreeSet<String> = with.difference(&without).cloned().collect();
        assert_eq!(found, set(&[&everywhere[..], more].concat()), "{namespace}");
    }
    agents_have_exactly_these_permissions(&plane).await;
    component_works_with_several_replicas(&plane).await;
    webhook_is_called_only_for_claims_of_external_addresses(&plane, &own).await;
}

/// A Service with this change.
fn with(name: &str, change: &Value) -> DynamicObject {
    let mut whole = serde_json::to_value(service(name, json!({}))).unwrap();
    json_patch::merge(&mut whole, change);
    serde_json::from_value(whole).unwrap()
}

/// An update of a Service, and whether the webhook that fails closed is called.
struct Update {
    name: &'static str,
    before: Value,
    change: Value,
    expected: &'static str,
}

fn updates() -> [Update; 19] {
    let row = |name, before, change, expected| Update { name, before, change, expected };
    let ips = |ips: &[&str]| json!({ "spec": { "externalIPs": ips } });
    let annotation = |key: &str, value: Option<&str>| json!({ "metadata": { "annotations": { key: value } } });
    let metallb = |value: Option<&str>| annotation("metallb.io/loadBalancerIPs", value);
    let asked = |ip: Option<&str>| json!({ "spec": { "type": "LoadBalancer", "loadBalancerIP": ip } });
    let record = |addresses: Option<&str>| annotation("clusterip-policy/external-addresses", addresses);
    let label = || json!({ "metadata": { "labels": { "team": "shop" } } });
    let ports = json!({ "spec": { "ports": [{ "port": 81 }] } });
    let our_own = annotation("clusterip-policy/external-address", Some("192.0.2.10"));
    let none = || json!({});
    let (one, other) = (Some("192.0.2.10"), Some("192.0.2.11"));
    let (ip, both) = (ips(&["192.0.2.10"]), ips(&["192.0.2.10", "192.0.2.11"]));
    let own = "192.0.2.99";
    let others = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6", "192.0.2.7"];
    let (own_first, own_last) =
        ([&[own, "192.0.2.8"], &others[..]].concat(), [&others[..], &["192.0.2.8", own]].concat());
    let eight = ips(&[&[own], &others[..]].concat());
    let twice = ips(&[&[own], &own_last[..]].concat());
    let (own_first, own_last) = (ips(&own_first), ips(&own_last));
    [
        row("an external IP", none(), ip.clone(), "called"),
        row("one more external IP", ip.clone(), both.clone(), "called"),
        row("an external IP less", both, ips(&["192.0.2.11"]), "not called"),
        row("another order of nine external IPs", own_first.clone(), own_last.clone(), "called"),
        row("one of two equal external IPs less, and nine left", twice, own_last, "called"),
        row("one of nine external IPs less", own_first, eight, "not called"),
        row("no external IP", ip.clone(), json!({ "spec": { "externalIPs": null } }), "not called"),
        row("ports beside external IPs", ip, ports, "not called"),
        row("a load balancer IP", none(), asked(one), "called"),
        row("another load balancer IP", asked(one), asked(other), "called"),
        row("no load balancer IP", asked(one), asked(None), "not called"),
        row("an annotation of MetalLB", none(), metallb(one), "called"),
        row("a label beside an annotation of MetalLB", metallb(one), label(), "not called"),
        row("no annotation of MetalLB", metallb(one), metallb(None), "not called"),
        row("our own annotation", none(), our_own, "not called"),
        row("a record of addresses", none(), record(one), "called"),
        row("another record", record(one), record(other), "called"),
        row("a label beside a record", record(one), label(), "not called"),
        row("no record", record(one), record(None), "not called"),
    ]
}

async fn webhook_is_called_only_for_claims_of_external_addresses(plane: &ControlPlane, own: &Api<DynamicObject>) {
    let shipped = disconnect(plane, WEBHOOK).await;
    assert_eq!(
        (&shipped["webhooks"][1]["name"], &shipped["webhooks"][1]["failurePolicy"]),
        (&json!(WEBHOOK), &json!("Fail"))
    );

    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let create = async |services: &Api<DynamicObject>, change: Value| {
        outcome(WEBHOOK, services.create(&dry_run, &with("new", &change)).await)
    };
    let claims = || json!({ "spec": { "externalIPs": ["192.0.2.10"] } });
    eventually("the API server to call the webhook", async || (create(own, claims()).await == "called").then_some(()))
        .await;
    let ours = json!({ "spec": { "type": "LoadBalancer", "loadBalancerClass": "clusterip-policy/external" } });
    let mut forged = claims();
    forged["metadata"]["annotations"] = json!({ MOVING: "{}" });
    let exempt = services(plane.client(), "kube-system");
    let call = |request: &str, outcome, expected| Call { request: request.to_owned(), outcome, expected };
    let mut calls = vec![
        call("create without any", create(own, json!({})).await, "not called"),
        call("create one of our class", create(own, ours).await, "not called"),
        call("create with the annotation of a move", create(own, forged).await, "called"),
        call("create in an exempt namespace", create(&exempt, claims()).await, "not called"),
    ];
    let keys = clusterip_core::annotations::FOREIGN_ANNOTATIONS.into_iter();
    let keys = keys.chain(["metallb.io/address-pool", "metallb.universe.tf/address-pool"]);
    for key in keys.chain([clusterip_core::annotations::RECORD_ANNOTATION]) {
        let change = json!({ "metadata": { "annotations": { key: "192.0.2.10" } } });
        calls.push(call(&format!("create with {key}"), create(own, change).await, "called"));
    }
    for (row, Update { name, change, expected, .. }) in updates().into_iter().enumerate() {
        let parameters = PatchParams { dry_run: true, ..PatchParams::default() };
        let patched = own.patch(&format!("row-{row}"), &parameters, &Patch::Merge(change)).await;
        calls.push(call(name, outcome(WEBHOOK, patched), expected));
    }
    assert_calls(calls);
}

async fn agents_have_exactly_these_permissions(plane: &ControlPlane) {
    let account = format!("{AGENTS}:clusterip-agent");
    let everywhere = [
        "clusterippolicies.clusterip-policy.io [] [] [list watch]",
        "endpointslices.discovery.k8s.io [] [] [list watch]",
        "externalpools.clusterip-policy.io [] [] [list watch]",
        "namespaces [] [] [list watch]",
        "nodeblockpools.clusterip-policy.io [] [] [list watch]",
        "nodes [] [] [list watch]",
        "servicecidrs.networking.k8s.io [] [] [list watch]",
        "servicepools.clusterip-policy.io [] [] [list watch]",
        "services [] [] [list watch]",
    ];
    let rows: [(&str, &[&str]); 3] = [
        ("default", &[]),
        (AGENTS, &["leases.coordination.k8s.io [] [] [get list watch create update delete]"]),
        (NAMESPACE, &[]),
    ];
    for (namespace, more) in rows {
        let expected = [&everywhere[..], more].concat();
        assert_eq!(rights(plane, &account, namespace).await, set(&expected), "{namespace}");
    }
}

/// The component also works with several replicas.
async fn component_works_with_several_replicas(plane: &ControlPlane) {
    let operator = Operator::new(plane, "https://127.0.0.1:1");
    std::fs::create_dir(operator.folder().join("deploy/own")).unwrap();
    operator.write(
        "deploy/own/kustomization.yaml",
        "resources: [../replicas]\ncomponents: [../nodes/component, ../load-balancers, ../seamless, ../external/component]\n",
    );
    let built = "kubectl kustomize deploy/own | grep -e '^  name: [a-z]*.clusterip-policy.io' -e '^kind: DaemonSet' \
                 -e 'pod-security' -e '^        - --'";
    let expected = "    pod-security.kubernetes.io/enforce: restricted
    pod-security.kubernetes.io/enforce: privileged
        - --listen
        - --claims
        - --move-load-balancers
        - --seamless-moves
        - --agents-namespace
  name: agents.clusterip-policy.io
  name: agents.clusterip-policy.io
kind: DaemonSet
        - --node
  name: services.clusterip-policy.io
  name: nodes.clusterip-policy.io
  name: external.clusterip-policy.io
";
    assert_eq!(operator.does(&Step::Type(built.to_owned())).await, expected);
}
