//! Counts the endpoints of a Service, and those that can be reached at its present addresses.

use std::borrow::Borrow;

use clusterip_cluster::kinds::State;
use clusterip_cluster::snapshot::{StoredEndpoints, addresses};
use clusterip_cluster::watch::stores::Stores;
use clusterip_core::label_selector::Labels;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::{Pool, Settings};
use clusterip_core::workload::OS_LABEL;
use serde_json::Value;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// The endpoints that are ready, or that still serve while they end.
    pub ready: usize,
    /// Those of them that can be reached at the present addresses of the Service: a plain move would interrupt clients.
    pub reachable: usize,
}

/// The endpoints of a Service, as the stores show them.
pub fn stored(stores: &Stores, settings: &Settings, service: &Value) -> Endpoints {
    let slices = stores.read_snapshot().endpoints_of(&ServiceKey::of(service));
    of(&slices, stores, settings, service)
}

/// The endpoints in these EndpointSlices of a Service.
///
/// An endpoint can't be reached only if every address of the Service lies in a pool whose `match` asks for other labels
/// than those of the endpoint's node. Everything else may be reachable: an address outside of all pools, an endpoint
/// without a node or on a node without such a label, and a node that the stores do not show as it is now.
pub fn of(slices: &[impl Borrow<StoredEndpoints>], stores: &Stores, settings: &Settings, service: &Value) -> Endpoints {
    let pools: Option<Vec<&Pool>> = addresses(service).into_iter().map(|address| settings.pool_of(address)).collect();
    // Only a pool with labels of nodes can be a wrong one, so the nodes are looked up for no other.
    let pools = pools.filter(|pools| pools.iter().all(|pool| !pool.matches.node_labels.is_empty()));
    let are_nodes_known = stores.states().get(&("v1".to_owned(), "Node".to_owned())) == Some(&State::Synced);
    let is_out_of_reach = |node: &str| {
        let node = Some(node).filter(|node| are_nodes_known && !node.is_empty());
        let node = node.and_then(|node| stores.read_snapshot().node(node).cloned());
        let Some((pools, node)) = pools.as_ref().zip(node) else { return false };
        pools.iter().all(|pool| contradicts(pool, &node.labels))
    };
    let mut count = Endpoints::default();
    for node in slices.iter().flat_map(|slice| &slice.borrow().nodes) {
        count.ready += 1;
        count.reachable += usize::from(!is_out_of_reach(node));
    }
    count
}

/// Whether a pool asks for other labels than these of a node. A label that the node does not have contradicts nothing:
/// some labels are added after the Node.
fn contradicts(pool: &Pool, node: &Labels) -> bool {
    let differs = |(key, value): (&String, &String)| match node.get(key) {
        // The policy ignores the case of the OS as well.
        Some(found) if key == OS_LABEL => !found.eq_ignore_ascii_case(value),
        Some(found) => found != value,
        None => false,
    };
    pool.matches.node_labels.iter().any(differs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_another_value_of_a_label_contradicts_a_pool() {
        struct Case {
            name: &'static str,
            node: Value,
            contradicts: bool,
        }
        let cases = [
            Case { name: "the same labels", node: json!({OS_LABEL: "Windows", "zone": "east"}), contradicts: false },
            Case { name: "another OS", node: json!({OS_LABEL: "linux", "zone": "east"}), contradicts: true },
            Case { name: "another zone", node: json!({OS_LABEL: "windows", "zone": "East"}), contradicts: true },
            Case { name: "no zone yet", node: json!({OS_LABEL: "windows"}), contradicts: false },
            Case { name: "no label", node: json!({}), contradicts: false },
        ];
        let document = json!({"services": {"pools": [
            {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows", "nodeLabels": {"zone": "east"}}},
        ]}});
        let settings = Settings::from_value(&document).unwrap();
        for Case { name, node, contradicts } in cases {
            let node: Labels = serde_json::from_value(node).unwrap();
            assert_eq!(super::contradicts(&settings.pools[0], &node), contradicts, "{name}");
        }
    }
}
