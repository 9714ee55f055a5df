//! Admission requests about Nodes, and allocation state, as JSON.

use serde_json::{Value, json};

use super::requests::{request, unchanged};
use super::{FakeCluster, answer_in_use};

/// The Node `w1` with these labels and this `spec`.
pub fn node(labels: Value, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "w1", "labels": labels}, "spec": spec})
}

/// The Node `w1` with the label `kubernetes.io/os`.
pub fn node_of(os: &str, spec: Value) -> Value {
    node(json!({"kubernetes.io/os": os}), spec)
}

/// A `spec` with these blocks in both fields.
pub fn with_blocks(blocks: &[&str]) -> Value {
    json!({"podCIDR": blocks[0], "podCIDRs": blocks})
}

/// An AdmissionRequest about a Node; `old` is null for a creation.
pub fn about_node(operation: &str, object: Value, old: Value) -> Value {
    let mut request = request(operation, object, old);
    request["kind"]["kind"] = "Node".into();
    request
}

/// The creation of a Node.
pub fn node_created(object: &Value) -> Value {
    about_node("CREATE", object.clone(), Value::Null)
}

/// The whole answer to `request`, decided with this allocation state. The decision makes no look-ups.
pub fn assigned_of(request: &Value, settings: &Value, allocation: &Value) -> Value {
    let payload = json!({"request": request, "settings": settings, "allocation": allocation});
    let cluster = FakeCluster::default();
    let answer = answer_in_use(&payload, &cluster);
    assert_eq!(cluster.questions(), [""; 0], "the host knows the blocks in use, so nothing is looked up");
    serde_json::to_value(answer).unwrap()
}

/// The blocks that the Node `w1` without labels gets, or the message of the refusal.
#[track_caller]
pub fn blocks_given(settings: &Value, allocation: &Value) -> Result<Vec<String>, String> {
    let object = node(json!({}), json!({}));
    let answer = assigned_of(&node_created(&object), settings, allocation);
    if let Some(message) = answer["message"].as_str() {
        return Err(message.to_owned());
    }
    let spec = &answer["mutated_object"]["spec"];
    let blocks: Vec<String> = serde_json::from_value(spec["podCIDRs"].clone()).unwrap();
    assert_eq!(spec["podCIDR"], blocks[0], "the one is the first of the many");
    Ok(blocks)
}

/// Settings with a pool for Windows Nodes, one for some Linux Nodes, and one for all other Linux Nodes.
pub fn two_pools() -> Value {
    json!({"nodes": {"pools": [
        {"name": "windows", "cidrs": ["10.1.0.0/16"], "match": {"os": "windows"}},
        {"name": "gpu", "cidrs": ["10.2.0.0/16"], "match": {
            "os": "linux",
            "nodeLabels": {"disk": "ssd"},
            "nodeSelector": {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100", "h100"]}]},
        }},
        {"name": "linux", "cidrs": ["10.0.0.0/16"], "match": {"os": "linux"}},
    ]}})
}

/// The answer that leaves a Node unchanged for this reason.
pub fn node_unchanged(reason: &str) -> Value {
    unchanged(reason, super::UNASKED, &[])
}

/// Requests one after the other, like those of a controller: assigned blocks are held from then on, and the next search
/// starts behind them.
pub struct Sequence {
    settings: Value,
    pub held: Vec<String>,
    last: Vec<String>,
}

impl Sequence {
    pub fn new(settings: Value) -> Self {
        Self { settings, held: Vec::new(), last: Vec::new() }
    }

    pub fn next(&mut self) -> Result<Vec<String>, String> {
        let blocks = blocks_given(&self.settings, &json!({"held": self.held, "last": self.last}))?;
        self.held.extend(blocks.iter().cloned());
        self.last = blocks.clone();
        Ok(blocks)
    }
}
