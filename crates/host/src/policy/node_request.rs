//! Admission requests about Nodes that this program makes itself, to ask the policy for blocks.

use serde::Serialize;

/// A request about a Node, with the fields that the policy reads. The policy may be asked about thousands of Nodes in a
/// row.
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
}
