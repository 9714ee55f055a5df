//! Counts the endpoints of a Service, and those that can be reached at its present addresses.

use clusterip_cluster::lookups::snapshot::{SERVICE_NAME_LABEL, addresses, map};
use clusterip_cluster::object::{name, namespace, text};
use clusterip_cluster::watch::stores::{State, Stores};
use clusterip_core::label_selector::Labels;
use clusterip_core::pod_spec::OS_LABEL;
use clusterip_core::settings::{Pool, Settings};
use serde_json::Value;

/// How many endpoints of a Service answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// The endpoints that are ready, or that still serve while they end.
    pub ready: usize,
    /// Those of them that can be reached at the present addresses of the Service: a plain move would interrupt clients.
    pub reachable: usize,
}

/// The endpoints of a Service, as the stores show them.
pub fn stored(stores: &Stores, settings: &Settings, service: &Value) -> Endpoints {
    let label = (SERVICE_NAME_LABEL.to_owned(), name(service).to_owned());
    let slices = {
        let snapshot = stores.read_snapshot();
        snapshot.labelled("discovery.k8s.io/v1", "EndpointSlice", namespace(service), &label)
    };
    of(&slices, stores, settings, service)
}

/// The endpoints in these EndpointSlices of a Service.
///
/// An endpoint can't be reached only if every address of the Service lies in a pool whose `match` asks for other labels
/// than those of the endpoint's node. Everything else may be reachable: an address outside of all pools, an endpoint
/// without a node or on a node without such a label, and a node that the stores do not show as it is now.
pub fn of(slices: &[Value], stores: &Stores, settings: &Settings, service: &Value) -> Endpoints {
    let pools: Option<Vec<&Pool>> = addresses(service).into_iter().map(|address| settings.pool_of(address)).collect();
    // Only a pool with labels of nodes can be a wrong one, so the nodes are looked up for no other.
    let pools = pools.filter(|pools| pools.iter().all(|pool| !pool.matches.node_labels.is_empty()));
    let are_nodes_known = stores.states().get(&("v1".to_owned(), "Node".to_owned())) == Some(&State::Synced);
    let labels_of = |node: &str| {
        let node = stores.read_snapshot().get("v1", "Node", "", node)?;
        Some(map(&node, &["metadata", "labels"]))
    };
    let is_out_of_reach = |endpoint: &Value| {
        let node = Some(text(endpoint, &["nodeName"])).filter(|node| are_nodes_known && !node.is_empty());
        let Some((pools, labels)) = pools.as_ref().zip(node.and_then(labels_of)) else { return false };
        pools.iter().all(|pool| contradicts(pool, &labels))
    };
    let endpoints = slices.iter().filter_map(|slice| slice.get("endpoints")?.as_array()).flatten();
    let mut count = Endpoints::default();
    for endpoint in endpoints.filter(|endpoint| answers(endpoint)) {
        count.ready += 1;
        count.reachable += usize::from(!is_out_of_reach(endpoint));
    }
    count
}

/// Whether an endpoint gets requests. Without the condition `ready` it is ready, and without `serving` it serves as long
/// as it is ready. If no endpoint is ready, kube-proxy sends requests to those that serve while they end.
fn answers(endpoint: &Value) -> bool {
    let condition = |name: &str| endpoint.get("conditions").and_then(|conditions| conditions.get(name)?.as_bool());
    let is_ending = condition("terminating") == Some(true);
    condition("ready").unwrap_or(true) || condition("serving").unwrap_or(is_ending)
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
    fn endpoint_answers_by_its_conditions() {
        struct Case {
            name: &'static str,
            conditions: Value,
            answers: bool,
        }
        let cases = [
            Case { name: "no conditions", conditions: Value::Null, answers: true },
            Case { name: "unknown", conditions: json!({"ready": null, "serving": null}), answers: true },
            Case { name: "ready", conditions: json!({"ready": true}), answers: true },
            Case { name: "not ready", conditions: json!({"ready": false}), answers: false },
            Case {
                name: "not ready, and unknown",
                conditions: json!({"ready": false, "serving": null}),
                answers: false,
            },
            Case {
                name: "ends, and serves",
                conditions: json!({"ready": false, "serving": true, "terminating": true}),
                answers: true,
            },
            Case {
                name: "ends, and may serve",
                conditions: json!({"ready": false, "terminating": true}),
                answers: true,
            },
            Case {
                name: "ends, and serves no more",
                conditions: json!({"ready": false, "serving": false, "terminating": true}),
                answers: false,
            },
        ];
        for Case { name, conditions, answers } in cases {
            assert_eq!(super::answers(&json!({ "conditions": conditions })), answers, "{name}");
        }
    }

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
