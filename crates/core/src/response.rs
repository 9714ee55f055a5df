//! The response of the policy module to a request: a decision as Kubewarden reads it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decision::{Decision, Denial, Verdict};

/// The response of a Kubewarden policy. The same decision always gives the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Response {
    pub accepted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    /// The object of the request with its new addresses, blocks or record; `None` if it does not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutated_object: Option<Value>,
    /// What was decided, and why. Every response has them, including refusals.
    pub audit_annotations: Option<BTreeMap<String, String>>,
    /// Warnings for the author of the request. The API server shows them, and may cut those with more than 256
    /// characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Vec<String>>,
}

impl Response {
    /// The response that carries out `decision` on `object`, the object of the request.
    pub fn new(decision: Decision, mut object: Value) -> Self {
        let mutated_object = decision.carry_out(&mut object).then_some(object);
        let (audit_annotations, warnings) = (Some(decision.audit_annotations()), decision.cut_warnings());
        let warnings = (!warnings.is_empty()).then_some(warnings);
        let (accepted, message, code) = match decision.verdict {
            Verdict::Denied(Denial { code, message }) => (false, Some(message), Some(code)),
            _ => (true, None, None),
        };
        Self { accepted, message, code, mutated_object, audit_annotations, warnings }
    }

    pub(crate) fn unreadable(message: String) -> Self {
        let verdict = Verdict::Denied(Denial { code: 400, message });
        Self::new(Decision::new(verdict), Value::Null)
    }
}
