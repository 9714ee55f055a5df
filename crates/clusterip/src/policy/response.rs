//! The `AdmissionResponse` that a policy's answer becomes, as Kubewarden makes it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_core::answer::Answer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An `AdmissionResponse` of `admission.k8s.io/v1`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionResponse {
    /// That of the request.
    pub uid: String,
    /// Whether the request may go on.
    pub allowed: bool,
    /// `JSONPatch`, where there is a patch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_type: Option<String>,
    /// A JSON Patch, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    /// Why it may not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// For the audit log.
    pub audit_annotations: Option<BTreeMap<String, String>>,
    /// For whoever sent the request.
    pub warnings: Option<Vec<String>>,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// In words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// As an HTTP status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
}

impl AdmissionResponse {
    /// The response to `request`: what the policy changed becomes a patch.
    ///
    /// # Errors
    /// Where the patch can't be written as JSON.
    pub fn new(request: &Value, answer: Answer) -> Result<Self, serde_json::Error> {
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

    /// A refusal of `request` that is none of the policy's.
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
