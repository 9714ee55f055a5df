//! Finds the Nodes that may hold the addresses of a pool.

use std::sync::Arc;

use clusterip_core::label_selector::LabelSelector;

use crate::lookups::snapshot::StoredNode;

/// Whether a Node may hold the addresses of a pool with this selector for its nodes: the Node is ready, is not
/// excluded from load balancers, and has matching labels.
///
/// Kubernetes keeps a Node out of load balancers by the label
/// `node.kubernetes.io/exclude-from-external-load-balancers` (KEP-1143).
pub fn may_hold(node: &StoredNode, selector: &LabelSelector) -> bool {
    let is_excluded = node.labels.contains_key("node.kubernetes.io/exclude-from-external-load-balancers");
    node.is_ready && !is_excluded && selector.matches(&node.labels)
}

/// The names of the Nodes that may hold the addresses of a pool with this selector.
pub fn names<'n>(nodes: impl IntoIterator<Item = &'n Arc<StoredNode>>, selector: &LabelSelector) -> Vec<String> {
    let fitting = nodes.into_iter().filter(|node| may_hold(node, selector));
    fitting.map(|node| node.name.clone()).collect()
}
