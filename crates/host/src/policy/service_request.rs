//! Admission requests about Services that this program makes itself, to find out what the policy would answer.

use serde_json::{Value, json};

use crate::object;

/// A request to create or update a Service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRequest<'o> {
    /// The UID of the request.
    pub uid: &'o str,
    /// The user name of the client.
    pub username: &'o str,
    /// The Service as requested.
    pub object: &'o Value,
    /// The existing Service, if the request is an update.
    pub old: Option<&'o Value>,
    /// Whether the request is a dry run.
    pub dry_run: bool,
}

impl ServiceRequest<'_> {
    /// The request in the format of the API server.
    pub fn to_value(&self) -> Value {
        let kind = json!({"group": "", "version": "v1", "kind": "Service"});
        let resource = json!({"group": "", "version": "v1", "resource": "services"});
        json!({
            "uid": self.uid,
            "kind": kind,
            "requestKind": kind,
            "resource": resource,
            "requestResource": resource,
            "namespace": object::namespace(self.object),
            "name": object::name(self.object),
            "operation": if self.old.is_some() { "UPDATE" } else { "CREATE" },
            "userInfo": {"username": self.username},
            "object": self.object,
            "oldObject": self.old,
            "dryRun": self.dry_run,
            "options": null,
        })
    }
}
