//! Finds the Services whose place may change when an object of the cluster changes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clusterip_cluster::lookups::snapshot::{SERVICE_NAME_LABEL, Snapshot, addresses, map, pod_labels};
use clusterip_cluster::object::text;
use clusterip_cluster::watch::stores::Change;
use clusterip_core::label_selector::Labels;
use clusterip_core::service_key::ServiceKey;
use serde_json::Value;

/// The Services that must be looked at again after a change.
pub fn by(snapshot: &Snapshot, change: &Change) -> BTreeSet<ServiceKey> {
    let versions: Vec<&Value> = [&change.before, &change.after].into_iter().flatten().collect();
    let in_namespace = |name: String| ServiceKey::new(change.namespace.clone(), name);
    match (change.kind.0.as_str(), change.kind.1.as_str()) {
        ("v1", "Service") => BTreeSet::from([in_namespace(change.name.clone())]),
        ("v1", "Namespace") => snapshot.services(Some(&change.name)).into_iter().collect(),
        // The labels are the only field of a Node that is evidence. To find the Pods of a Node, all Pods are scanned.
        ("v1", "Node") if same_labels(&versions) => BTreeSet::new(),
        ("v1", "Node") => on_node(snapshot, &change.name),
        // A RuntimeClass rarely changes, and any workload may name it.
        ("node.k8s.io/v1", "RuntimeClass") => snapshot.services(None).into_iter().collect(),
        // Addresses and ranges are not evidence.
        ("networking.k8s.io/v1", "IPAddress" | "ServiceCIDR") => BTreeSet::new(),
        ("discovery.k8s.io/v1", "EndpointSlice") => {
            let names = versions.iter().map(|slice| text(slice, &["metadata", "labels", SERVICE_NAME_LABEL]));
            names.filter(|name| !name.is_empty()).map(|name| in_namespace(name.to_owned())).collect()
        }
        _ => {
            let selecting = |workload: &&Value| snapshot.services_selecting(&change.namespace, &pod_labels(workload));
            versions.iter().flat_map(selecting).map(in_namespace).collect()
        }
    }
}

/// Whether a Service had an address before the change that it does not have any more.
pub fn frees_an_address(change: &Change) -> bool {
    let of = |seen: &Option<Value>| -> BTreeSet<IpAddr> { seen.iter().flat_map(addresses).collect() };
    change.kind.1 == "Service" && !of(&change.before).is_subset(&of(&change.after))
}

/// Whether the object existed before the change and still exists, with the same labels.
fn same_labels(versions: &[&Value]) -> bool {
    matches!(versions, [before, after] if before.pointer("/metadata/labels") == after.pointer("/metadata/labels"))
}

/// The Services that select a Pod on this Node.
fn on_node(snapshot: &Snapshot, node: &str) -> BTreeSet<ServiceKey> {
    let mut found = BTreeSet::new();
    // The text of most Pods does not contain the name of the Node, so they need not be parsed.
    let pods = snapshot.packed_all("v1", "Pod").into_iter().filter(|pod| pod.contains(node));
    for pod in pods.map(|pod| pod.value()).filter(|pod| text(pod, &["spec", "nodeName"]) == node) {
        let namespace = text(&pod, &["metadata", "namespace"]);
        let labels: Labels = map(&pod, &["metadata", "labels"]);
        found.extend(
            snapshot.services_selecting(namespace, &labels).into_iter().map(|name| ServiceKey::new(namespace, name)),
        );
    }
    found
}
