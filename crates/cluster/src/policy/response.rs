//! The `AdmissionResponse` to a request, as Kubewarden builds it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_core::response::Response;
use clusterip_core::{Decision, Denial};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionResponse {
    pub uid: String,
    pub allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    pub audit_annotations: Option<BTreeMap<String, String>>,
    pub warnings: Option<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
}

impl AdmissionResponse {
    /// The response to `request` that carries out a decision: `changed` is the object as the decision changes it.
    pub fn decided(request: &Value, decision: &Decision, changed: Option<&Value>) -> Result<Self, serde_json::Error> {
        let (denial, warnings) = (decision.denial().cloned(), decision.cut_warnings());
        Ok(Self {
            allowed: denial.is_none(),
            status: denial.map(|Denial { code, message }| Status { message: Some(message), code: Some(code) }),
            audit_annotations: Some(decision.audit_annotations()),
            warnings: (!warnings.is_empty()).then_some(warnings),
            ..Self::allowed(request).patched(request, changed)?
        })
    }

    pub fn new(request: &Value, answer: Response) -> Result<Self, serde_json::Error> {
        let has_status = answer.message.is_some() || answer.code.is_some();
        Ok(Self {
            allowed: answer.accepted,
            status: has_status.then_some(Status { message: answer.message, code: answer.code }),
            audit_annotations: answer.audit_annotations,
            warnings: answer.warnings,
            ..Self::allowed(request).patched(request, answer.mutated_object.as_ref())?
        })
    }

    /// An admission of `request` that the policy did not decide.
    pub fn allowed(request: &Value) -> Self {
        let uid = request.get("uid").and_then(Value::as_str).unwrap_or_default().to_owned();
        Self { uid, allowed: true, ..Self::default() }
    }

    /// A denial of `request` that the policy did not decide.
    pub fn refused(request: &Value, code: u16, message: String) -> Self {
        let status = Some(Status { message: Some(message), code: Some(code) });
        Self { allowed: false, status, ..Self::allowed(request) }
    }

    fn patched(self, request: &Value, changed: Option<&Value>) -> Result<Self, serde_json::Error> {
        let (Some(object), Some(changed)) = (request.get("object"), changed) else { return Ok(self) };
        let patch = json_patch::diff(object, changed);
        if patch.is_empty() {
            return Ok(self);
        }
        let patch = Some(STANDARD.encode(serde_json::to_string(&patch)?));
        Ok(Self { patch_type: Some("JSONPatch".to_owned()), patch, ..self })
    }
}
