//! Admission requests that this program makes itself, to find out what the policy would answer.

use serde_json::{Value, json};

use crate::object;

#[derive(Clone, Copy, Debug)]
pub struct ServiceRequest<'o> {
    pub uid: &'o str,
    pub username: &'o str,
    pub object: &'o Value,
    pub old: Option<&'o Value>,
    pub dry_run: bool,
}

impl ServiceRequest<'_> {
    /// The request in the format of the API server, without the optional fields that the policy does not read.
    pub fn to_value(&self) -> Value {
        let Self { uid, username, object, old, dry_run } = *self;
        json!({
            "uid": uid,
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "resource": {"group": "", "version": "v1", "resource": "services"},
            "namespace": object::namespace(object),
            "name": object::name(object),
            "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
            "userInfo": {"username": username},
            "object": object,
            "oldObject": old,
            "dryRun": dry_run,
        })
    }
}

/// A request to create a Node, or to update the `old` one, with the fields that the policy reads.
pub fn node_request(node: &Value, old: Option<&Value>) -> Value {
    let kind = json!({"group": "", "version": "v1", "kind": "Node"});
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    json!({"kind": kind, "operation": operation, "object": node, "oldObject": old})
}
