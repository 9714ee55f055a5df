//! Admission requests about Nodes that nobody has sent: how the policy is asked for blocks.

use serde_json::{Value, json};

use crate::cluster::object;

/// A request to create this Node, which is not there yet or has no blocks.
pub fn node_request(username: &str, node: &Value) -> Value {
    let kind = json!({"group": "", "version": "v1", "kind": "Node"});
    let resource = json!({"group": "", "version": "v1", "resource": "nodes"});
    json!({
        "uid": "blocks",
        "kind": kind,
        "requestKind": kind,
        "resource": resource,
        "requestResource": resource,
        "name": object::name(node),
        "operation": "CREATE",
        "userInfo": {"username": username},
        "object": node,
        "oldObject": null,
        "dryRun": false,
        "options": null,
    })
}

/// A request to update a Node that is there.
pub fn node_update(username: &str, node: &Value, old: &Value) -> Value {
    let mut request = node_request(username, node);
    request["operation"] = "UPDATE".into();
    request["oldObject"] = old.clone();
    request
}
