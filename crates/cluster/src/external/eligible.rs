//! Finds the Nodes that may hold the addresses of a pool.

use clusterip_core::label_selector::{LabelSelector, Labels};
use serde_json::Value;

use crate::lookups::snapshot::map;
use crate::object::name;

/// Whether a Node may hold the addresses of a pool with this selector for its nodes: the Node is ready, is not
/// excluded from load balancers, and has matching labels.
///
/// Kubernetes keeps a Node out of load balancers by the label
/// `node.kubernetes.io/exclude-from-external-load-balancers` (KEP-1143).
pub fn may_hold(node: &Value, selector: &LabelSelector) -> bool {
    let labels: Labels = map(node, &["metadata", "labels"]);
    let excluded = labels.contains_key("node.kubernetes.io/exclude-from-external-load-balancers");
    is_ready(node) && !excluded && selector.matches(&labels)
}

/// The names of the Nodes that may hold the addresses of a pool with this selector.
pub fn names<'n>(nodes: impl IntoIterator<Item = &'n Value>, selector: &LabelSelector) -> Vec<String> {
    let fitting = nodes.into_iter().filter(|node| may_hold(node, selector));
    fitting.map(|node| name(node).to_owned()).collect()
}

fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    let is = |condition: &Value, key: &str, value: &str| condition.get(key).is_some_and(|found| found == value);
    conditions.into_iter().flatten().any(|condition| is(condition, "type", "Ready") && is(condition, "status", "True"))
}
