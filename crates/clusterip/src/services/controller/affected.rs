//! Finds the Services whose place may change when an object of the cluster changes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use clusterip_cluster::lookups::snapshot::{Snapshot, Stored};
use clusterip_cluster::watch::stores::Change;
use clusterip_core::service_key::ServiceKey;

/// The Services that must be looked at again after a change.
pub fn by(snapshot: &Snapshot, change: &Change) -> BTreeSet<ServiceKey> {
    let versions = || [&change.before, &change.after].into_iter().flatten();
    let in_namespace = |name: String| ServiceKey::new(change.namespace.clone(), name);
    match (change.kind.0.as_str(), change.kind.1.as_str()) {
        ("v1", "Service") => BTreeSet::from([in_namespace(change.name.clone())]),
        ("v1", "Namespace") => snapshot.services(Some(&change.name)).into_iter().collect(),
        // The labels are the only field of a Node that is evidence. To find the Pods of a Node, all Pods are scanned.
        ("v1", "Node") if has_same_labels(change) => BTreeSet::new(),
        ("v1", "Node") => snapshot.services_on_node(&change.name),
        // A RuntimeClass rarely changes, and any workload may name it.
        ("node.k8s.io/v1", "RuntimeClass") => snapshot.services(None).into_iter().collect(),
        // Addresses and ranges are not evidence.
        ("networking.k8s.io/v1", "IPAddress" | "ServiceCIDR") => BTreeSet::new(),
        _ => {
            let concerned = |version: &Stored| match version {
                Stored::Endpoints(endpoints) if endpoints.service.is_empty() => BTreeSet::new(),
                Stored::Endpoints(endpoints) => BTreeSet::from([endpoints.service.to_string()]),
                Stored::Workload(workload) => snapshot.services_selecting(&change.namespace, workload.labels()),
                _ => BTreeSet::new(),
            };
            versions().flat_map(concerned).map(in_namespace).collect()
        }
    }
}

/// Whether a Service had an address before the change that it does not have any more.
pub fn frees_an_address(change: &Change) -> bool {
    let of = |version: &Option<Stored>| -> BTreeSet<IpAddr> {
        match version {
            Some(Stored::Service(service)) => service.addresses().iter().copied().collect(),
            _ => BTreeSet::new(),
        }
    };
    !of(&change.before).is_subset(&of(&change.after))
}

/// Whether the Node existed before the change and still exists, with the same labels.
fn has_same_labels(change: &Change) -> bool {
    matches!(
        (&change.before, &change.after),
        (Some(Stored::Node(before)), Some(Stored::Node(after))) if before.labels == after.labels
    )
}
