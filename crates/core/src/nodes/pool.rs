//! Chooses the pool of a Node.

use crate::decision::{Report, in_words};
use crate::label_selector::Labels;
use crate::nodes::Node;
use crate::pod_spec::labelled;
use crate::settings::{NodePool, NodeSettings};

/// The first pool, in the order of the settings, whose `match` matches the Node's labels.
pub fn choose<'s>(node: &Node, settings: &'s NodeSettings) -> Option<&'s NodePool> {
    settings.pools.iter().find(|pool| admits(pool, node))
}

fn admits(pool: &NodePool, node: &Node) -> bool {
    let matches = &pool.matches;
    matches.node_labels.iter().all(|(key, value)| labelled(&node.labels, key).as_ref() == Some(value))
        && matches.node_selector.matches(&node.labels)
}

/// The labels of the Node with the keys that these pools match on.
fn matched_labels(node: &Node, pools: &[NodePool]) -> Labels {
    let mut labels = Labels::new();
    for pool in pools {
        let selector = &pool.matches.node_selector;
        let keys = pool.matches.node_labels.keys().chain(selector.match_labels.keys());
        for key in keys.chain(selector.match_expressions.iter().map(|requirement| &requirement.key)) {
            if let Some(value) = labelled(&node.labels, key) {
                labels.insert(key.clone(), value);
            }
        }
    }
    labels
}

/// Why the Node belongs to this pool.
pub fn report(node: &Node, pool: &NodePool) -> Report {
    let labels = matched_labels(node, std::slice::from_ref(pool));
    let matches = &pool.matches;
    let source = if matches.node_labels.is_empty() && matches.node_selector.is_empty() {
        "default".to_owned()
    } else {
        format!("Node {}", node.name)
    };
    Report { source, labels, mixed: Vec::new() }
}

/// The reason why no pool matches this Node.
pub fn no_matching_pool(node: &Node, settings: &NodeSettings) -> String {
    let labels = matched_labels(node, &settings.pools);
    if labels.is_empty() {
        return "no pool of Nodes matches a Node without their labels".to_owned();
    }
    format!("no pool of Nodes matches {}", in_words(&labels))
}
