//! Snapshots with external addresses and agents.

use super::{Done, Folder, merged};
use serde_json::{Value, json};

/// A pool for one namespace, a small pool for all namespaces that only some nodes may hold, and no pool for Services.
pub const SETTINGS: &str = "
services: {serviceCIDRs: [172.21.0.0/16]}
external:
  pools:
  - {name: bank, cidrs: [10.0.10.0/30], match: {namespaces: [bank]}}
  - {name: lan, cidrs: [10.0.9.10-10.0.9.12], nodes: {matchLabels: {edge: 'yes'}}}
";

const CLASS: &str = "clusterip-policy/external";

/// The Service `shop/NAME` of our class, merged with `more`.
pub fn service(name: &str, more: Value) -> Value {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop", "managedFields": [{"manager": "helm"}]},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": CLASS, "clusterIP": "172.21.0.9", "ipFamilies": ["IPv4"]},
    });
    merged(service, more)
}

/// The same with recorded external addresses.
pub fn has(name: &str, record: &str) -> Value {
    service(name, json!({"metadata": {"annotations": {"clusterip-policy/external-addresses": record}}}))
}

/// `service` with this address in its status.
pub fn shows(mut service: Value, address: &str) -> Value {
    service["status"] = json!({"loadBalancer": {"ingress": [{"ip": address}]}});
    service
}

/// The Service `shop/NAME` of type ClusterIP, merged with `more`.
pub fn plain(name: &str, more: Value) -> Value {
    merged(service(name, json!({"spec": {"type": "ClusterIP", "loadBalancerClass": null}})), more)
}

/// A Node with this label: `edge` if it may hold addresses of the pool `lan`.
pub fn node(name: &str, label: &str, ready: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {label: "yes"}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    })
}

fn lease(name: &str, of: &str, note: (&str, &str), spec: Value) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec,
        "metadata": {"name": name, "namespace": "own", "labels": {"clusterip-policy/lease": of}, "annotations": {note.0: note.1}},
    })
}

/// The heartbeat of an agent, renewed this many seconds before the newest one.
pub fn heartbeat(node: &str, holder: &str, before: u8) -> Value {
    let renewed = format!("2026-03-01T10:00:{:02}.000000Z", 59 - before);
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 20, "renewTime": renewed});
    lease(&format!("clusterip-agent-{node}"), "agent", ("clusterip-policy/node", node), spec)
}

/// The claim of an address.
pub fn claim(address: &str, holder: &str) -> Value {
    let name = format!("clusterip-external-{}", address.replace('.', "-"));
    lease(&name, "external", ("clusterip-policy/address", address), json!({"holderIdentity": holder}))
}

/// Audits a snapshot with these objects under `SETTINGS`.
pub fn audit(folder: &Folder, objects: &[Value], args: &[&str]) -> Done {
    folder.audit(SETTINGS, objects, &[&["--server-namespace", "own", "--agents-namespace", "own"], args].concat())
}

/// The identity of the agent on the Node `a`.
pub const A1: &str = "a_agent_00000000000000a1";
