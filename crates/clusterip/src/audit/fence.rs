//! Whether the API server has the policies that enforce `spec.fence` of pool objects.

use std::collections::BTreeMap;

use clusterip_api::{Kind, ObjectKey};
use clusterip_cluster::api_error::error_message;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::{Api, Client};
use serde_json::Value;

use crate::text::joined;

/// Which pools have a fence that nothing enforces, or for which that is unknown, as sentences. Of `objects`, only pools
/// count.
pub(crate) async fn unenforced(client: &Client, objects: &[Value]) -> Vec<String> {
    let mut fenced: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for object in objects {
        let kind = match ObjectKey::of(object) {
            Some(ObjectKey { kind: Kind::ServicePool, .. }) => "service",
            Some(ObjectKey { kind: Kind::ExternalPool, .. }) => "external",
            _ => continue,
        };
        let suffix = match object.pointer("/spec/fence").and_then(Value::as_str) {
            Some("Deny") => "",
            Some("Warn") => "-warning",
            _ => continue,
        };
        let pool = ObjectKey::of(object).map(|key| key.to_string()).unwrap_or_default();
        fenced.entry(format!("{kind}-fence{suffix}.clusterip-policy.io")).or_default().push(pool);
    }
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let mut notes = Vec::new();
    for (name, pools) in fenced {
        let binding = format!("ValidatingAdmissionPolicyBinding {name}");
        let pools = joined(pools, ", ");
        match bindings.get_metadata_opt(&name).await {
            Ok(Some(_)) => {}
            Ok(None) => notes.push(format!(
                "nothing enforces spec.fence of {pools}: the cluster has no {binding}; apply deploy/fence, or run helm \
                 upgrade if the chart is installed"
            )),
            Err(error) => notes.push(format!(
                "it is unknown whether the API server enforces spec.fence of {pools}: {binding} can't be read: {}",
                error_message(&error)
            )),
        }
    }
    notes
}
