//! Counts the endpoints of a Service that can be reached at its present address.

use clusterip_core::label_selector::Labels;
use clusterip_core::settings::Pool;
use clusterip_host::cluster::lookups::snapshot::{SERVICE_NAME_LABEL, Snapshot, map};
use clusterip_host::object::text;
use serde_json::Value;

/// How many ready endpoints a move of this Service would disturb: those on nodes that a pool in `lies_in` fits.
///
/// A pool fits a node that has the labels of its `match`. An endpoint on any other node can't be reached through an
/// address of the pool anyway, and no endpoint can be reached through an address outside of all pools. An endpoint
/// without a node, or on an unknown node, counts as disturbed if the address lies in any pool, because it may be
/// reachable.
pub fn disturbed(snapshot: &Snapshot, namespace: &str, name: &str, lies_in: &[&Pool]) -> usize {
    let label = (SERVICE_NAME_LABEL.to_owned(), name.to_owned());
    let slices = snapshot.labelled("discovery.k8s.io/v1", "EndpointSlice", namespace, &label);
    let mut disturbed = 0;
    for slice in slices {
        let endpoints = slice.get("endpoints").and_then(Value::as_array).into_iter().flatten();
        for endpoint in endpoints.filter(|endpoint| is_ready(endpoint)) {
            let node = text(endpoint, &["nodeName"]);
            let labels = snapshot.get("v1", "Node", "", node).map(|node| map(&node, &["metadata", "labels"]));
            if lies_in.iter().any(|pool| fits(pool, labels.as_ref())) {
                disturbed += 1;
            }
        }
    }
    disturbed
}

/// Whether a Service has a ready endpoint.
pub fn has_ready(snapshot: &Snapshot, namespace: &str, name: &str) -> bool {
    let label = (SERVICE_NAME_LABEL.to_owned(), name.to_owned());
    snapshot
        .labelled("discovery.k8s.io/v1", "EndpointSlice", namespace, &label)
        .into_iter()
        .any(|slice| slice.get("endpoints").and_then(Value::as_array).into_iter().flatten().any(is_ready))
}

/// An endpoint without the condition `ready` is ready (EndpointConditions of `discovery.k8s.io/v1`).
fn is_ready(endpoint: &Value) -> bool {
    endpoint.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true)
}

fn fits(pool: &Pool, node: Option<&Labels>) -> bool {
    let Some(node) = node else { return true };
    pool.matches.node_labels.iter().all(|(key, value)| {
        let found = node.get(key);
        // The policy ignores the case of the OS as well.
        if key == "kubernetes.io/os" {
            found.is_some_and(|os| os.eq_ignore_ascii_case(value))
        } else {
            found == Some(value)
        }
    })
}
