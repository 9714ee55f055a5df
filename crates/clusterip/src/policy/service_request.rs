//! Admission requests that nobody has sent: how the policy is asked what it would say.

use serde_json::{Value, json};

use crate::cluster::object;

/// A request to create a Service, or to update one.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRequest<'o> {
    /// `uid`
    pub uid: &'o str,
    /// Who asks.
    pub username: &'o str,
    /// The Service that is asked for.
    pub object: &'o Value,
    /// The Service that is there, where it is an update.
    pub old: Option<&'o Value>,
    /// Whether nothing comes of it.
    pub dry_run: bool,
}

impl ServiceRequest<'_> {
    /// The request, as the API server writes it.
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
