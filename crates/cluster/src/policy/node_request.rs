//! Admission requests about Nodes that this program makes itself, to decide about their blocks.

use serde::Serialize;
use serde_json::Value;

/// A request about a Node, with the fields that the policy reads.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRequest<'n, N> {
    kind: Kind,
    operation: &'static str,
    object: &'n N,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_object: Option<&'n N>,
}

#[derive(Clone, Debug, Serialize)]
struct Kind {
    group: &'static str,
    version: &'static str,
    kind: &'static str,
}

impl<'n, N: Serialize> NodeRequest<'n, N> {
    /// A request to create a Node. The Node does not exist yet or has no blocks.
    pub fn created(node: &'n N) -> Self {
        let kind = Kind { group: "", version: "v1", kind: "Node" };
        Self { kind, operation: "CREATE", object: node, old_object: None }
    }

    /// A request to update an existing Node.
    pub fn updated(node: &'n N, old: &'n N) -> Self {
        Self { operation: "UPDATE", old_object: Some(old), ..Self::created(node) }
    }

    /// The request in the format of the API server.
    pub fn to_value(&self) -> Value {
        // Serializing can't fail: the keys of an object are strings, and its numbers are finite.
        serde_json::to_value(self).unwrap_or_default()
    }
}
