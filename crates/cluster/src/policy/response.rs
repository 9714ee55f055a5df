//! The `AdmissionResponse` for an answer of the policy, as Kubewarden builds it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_core::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An `AdmissionResponse` of `admission.k8s.io/v1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionResponse {
    /// The UID of the request.
    pub uid: String,
    /// Whether the request is allowed.
    pub allowed: bool,
    /// `JSONPatch` if there is a patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_type: Option<String>,
    /// A JSON Patch in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// The reason for a denial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// Annotations for the audit log of the API server.
    pub audit_annotations: Option<BTreeMap<String, String>>,
    /// Warnings for the client.
    pub warnings: Option<Vec<String>>,
}

/// The reason for a denial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The message for the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The HTTP status code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
}

impl AdmissionResponse {
    /// The response to `request`. If the policy changed the object, the change becomes a patch.
    ///
    /// # Errors
    /// If the patch can't be written as JSON.
    pub fn new(request: &Value, answer: Response) -> Result<Self, serde_json::Error> {
        let uid = request.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned();
        let patch = match (&answer.mutated_object, request.get("object")) {
            (Some(mutated), Some(object)) => {
                let patch = json_patch::diff(object, mutated);
                if patch.is_empty() { None } else { Some(STANDARD.encode(serde_json::to_string(&patch)?)) }
            }
            _ => None,
        };
        let status = (answer.message.is_some() || answer.code.is_some())
            .then_some(Status { message: answer.message, code: answer.code });
        Ok(Self {
            uid,
            allowed: answer.accepted,
            patch_type: patch.is_some().then(|| "JSONPatch".to_owned()),
            patch,
            status,
            audit_annotations: answer.audit_annotations,
            warnings: answer.warnings,
        })
    }

    /// A denial of `request` that the policy did not make.
    pub fn refused(request: &Value, code: u16, message: String) -> Self {
        Self {
            uid: request.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned(),
            allowed: false,
            patch_type: None,
            patch: None,
            status: Some(Status { message: Some(message), code: Some(code) }),
            audit_annotations: None,
            warnings: None,
        }
    }
}
