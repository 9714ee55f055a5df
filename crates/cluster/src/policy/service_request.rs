//! Admission requests about Services that this program makes itself, to find out what the policy would answer.

use serde::{Serialize, Serializer};
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
        // Serializing can't fail: the keys of an object are strings, and its numbers are finite.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Serializes in the format of the API server.
impl Serialize for ServiceRequest<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { uid, username, object, old, dry_run } = *self;
        let kind = json!({"group": "", "version": "v1", "kind": "Service"});
        let resource = json!({"group": "", "version": "v1", "resource": "services"});
        let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
        let (namespace, name) = (object::namespace(object), object::name(object));
        let user_info = json!({"username": username});
        let request = AdmissionRequest {
            uid,
            kind,
            resource,
            namespace,
            name,
            operation,
            user_info,
            object,
            old_object: old,
            dry_run,
        };
        request.serialize(serializer)
    }
}

/// An `AdmissionRequest` of `admission.k8s.io/v1`, without the optional fields that the policy does not read.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionRequest<'o> {
    uid: &'o str,
    kind: Value,
    resource: Value,
    namespace: &'o str,
    name: &'o str,
    operation: &'static str,
    user_info: Value,
    object: &'o Value,
    old_object: Option<&'o Value>,
    dry_run: bool,
}
