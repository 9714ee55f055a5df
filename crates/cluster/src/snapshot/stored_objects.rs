//! What is kept of Nodes, Namespaces, RuntimeClasses and EndpointSlices.

use clusterip_core::json::{Located, TypeMismatch};
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::NamespaceMeta;
use ipnet::IpNet;
use serde_json::Value;

use crate::object::{blocks_of, map, name, text};

/// The label of an EndpointSlice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The fields of a Node that decisions and assignments read.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredNode {
    pub name: String,
    pub labels: Labels,
    pub blocks: Vec<IpNet>,
    pub is_ready: bool,
    pub(super) mistake: Option<TypeMismatch>,
}

impl StoredNode {
    pub fn read(node: &Value) -> Self {
        let conditions = node.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        let mut ready = conditions.filter(|condition| text(condition, &["type"]) == "Ready");
        Self {
            name: name(node).to_owned(),
            labels: map(node, &["metadata", "labels"]),
            blocks: blocks_of(node),
            is_ready: ready.any(|condition| text(condition, &["status"]) == "True"),
            mistake: strings(node, "metadata", "labels").err(),
        }
    }
}

pub(crate) fn namespace(object: &Value) -> Result<NamespaceMeta, TypeMismatch> {
    let labels = strings(object, "metadata", "labels")?;
    Ok(NamespaceMeta { labels, annotations: strings(object, "metadata", "annotations")?.into() })
}

pub(super) fn runtime_class_nodes(object: &Value) -> Result<Labels, TypeMismatch> {
    strings(object, "scheduling", "nodeSelector")
}

fn strings(object: &Value, outer: &str, inner: &str) -> Result<Labels, TypeMismatch> {
    Located::new(object, "").get(outer)?.map_or(Ok(Labels::new()), |at| at.map_of(inner))
}

/// The endpoints of an EndpointSlice that get requests.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredEndpoints {
    /// The name of the Service; empty if the EndpointSlice names none.
    pub service: Box<str>,
    /// The name of the Node of each endpoint; empty if it has none.
    pub nodes: Box<[Box<str>]>,
}

impl StoredEndpoints {
    pub fn read(slice: &Value) -> Self {
        let endpoints = slice.get("endpoints").and_then(Value::as_array).into_iter().flatten();
        let nodes = endpoints.filter(|endpoint| answers(endpoint)).map(|endpoint| text(endpoint, &["nodeName"]).into());
        Self { service: text(slice, &["metadata", "labels", SERVICE_NAME_LABEL]).into(), nodes: nodes.collect() }
    }

    /// With the entry of the EndpointSlice in the indexes.
    pub(super) fn bytes(&self, name: &str) -> usize {
        const ENTRY: usize = 96;
        const TEXT: usize = 32;
        let nodes = self.nodes.iter().map(|node| node.len() + TEXT).sum::<usize>();
        ENTRY + 2 * (name.len() + self.service.len()) + nodes
    }
}

/// Whether an endpoint gets requests. Without the condition `ready` it is ready, and without `serving` it serves as long
/// as it is ready. If no endpoint is ready, kube-proxy sends requests to those that serve while they end.
fn answers(endpoint: &Value) -> bool {
    let condition = |name: &str| endpoint.get("conditions").and_then(|conditions| conditions.get(name)?.as_bool());
    let is_ending = condition("terminating") == Some(true);
    condition("ready").unwrap_or(true) || condition("serving").unwrap_or(is_ending)
}

#[cfg(test)]
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
}
