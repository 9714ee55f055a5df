//! Decides about a request: request, settings and cluster go in, one decision comes out. [`validate`] does the same
//! from bytes to bytes, for the policy module.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::decision::{Decision, Denial, External, RecordChange, Verdict};
use crate::external::{self, HolderOf};
use crate::field_mask::Mask;
use crate::json::{TypeMismatch, describe};
use crate::lookups::{Cluster, LazyNamespace};
use crate::nodes::{self, Allocation};
use crate::request::{About, Change, Request};
use crate::service::Service;
use crate::services;
use crate::settings::Settings;

/// What a host that assigns blocks or external addresses knows to be in use. Without it, admission only checks those
/// that others have set.
#[derive(Clone, Copy, Default)]
pub struct InUse<'a> {
    /// The blocks of Nodes: with them, a Node without blocks gets some.
    pub blocks: Option<&'a Allocation>,
    /// The holders of external addresses: with them, a Service may get some.
    pub external: Option<&'a HolderOf<'a>>,
}

/// Decides about one admission request. About a Service: about its ClusterIP, and if that is not refused, about its
/// external addresses. About a Node: about its blocks. Any other request is left unchanged.
pub fn decide(request: &Request, settings: &Settings, in_use: InUse<'_>, cluster: &dyn Cluster) -> Decision {
    if let About::Node(node) = &request.about {
        return nodes::decide(&node.object, node.old.as_ref(), settings, in_use.blocks, cluster);
    }
    let namespace = LazyNamespace::new(&request.namespace, cluster);
    let mut decision = services::decide(request, settings, &namespace, cluster);
    // If either decision is a refusal, the whole request is refused.
    if !decision.verdict.is_denied() {
        match external::decide(request, settings, in_use.external, &namespace, cluster, &mut decision) {
            Ok(external) => decision.external = external,
            Err(denial) => {
                decision.external = Some(External { reason: None, ..External::new(RecordChange::Denied, "") });
                decision.verdict = Verdict::from(denial).about(&format!("Service {}", request.subject()));
            }
        }
    }
    services::explain(request, settings, &mut decision);
    decision
}

/// As [`decide`], for an `AdmissionRequest` as JSON. One that can't be read is denied with status 400 and the reason.
pub fn decide_value(request: &Value, settings: &Settings, in_use: InUse<'_>, cluster: &dyn Cluster) -> Decision {
    match Request::read(request) {
        Ok(request) => decide(&request, settings, in_use, cluster),
        Err(mismatch) => Decision::unreadable(&mismatch),
    }
}

/// As [`decide`], for a request to create a Service.
pub fn decide_create(
    uid: &str,
    namespace: &str,
    service: Result<Service, TypeMismatch>,
    settings: &Settings,
    in_use: InUse<'_>,
    cluster: &dyn Cluster,
) -> Decision {
    match service {
        Ok(object) => {
            decide(&Request::of_change(uid, namespace, Change { object, old: None }), settings, in_use, cluster)
        }
        Err(mismatch) => Decision::unreadable(&mismatch),
    }
}

/// Answers `{"request": AdmissionRequest, "settings": …}`. A payload that can't be read is denied with status 400 and the
/// reason.
pub fn validate(payload: &[u8], cluster: &dyn Cluster) -> Response {
    let unreadable = |why: &str| {
        Response::unreadable(format!("the request is not a JSON document with request and settings: {why}"))
    };
    let mut payload: Value = match Mask::read_all(payload) {
        Ok(payload) => payload,
        Err(error) => return unreadable(&error.to_string()),
    };
    if !payload.is_object() {
        return unreadable(&format!("found {}", describe(&payload)));
    }
    let mut field = |key: &str| payload.get_mut(key).map(Value::take).unwrap_or_default();
    let (mut request, settings) = (field("request"), field("settings"));
    let settings = match Settings::from_value(&settings) {
        Ok(settings) => settings,
        Err(invalid) => return Response::unreadable(format!("invalid settings: {invalid}")),
    };
    let decision = decide_value(&request, &settings, InUse::default(), cluster);
    Response::new(decision, request.get_mut("object").map(Value::take).unwrap_or_default())
}

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
        Self::with_object(decision, mutated_object)
    }

    /// The response for `mutated_object`, the object of the request as `decision` changes it.
    pub fn with_object(decision: Decision, mutated_object: Option<Value>) -> Self {
        let (audit_annotations, warnings) = (Some(decision.audit_annotations()), decision.cut_warnings());
        let warnings = (!warnings.is_empty()).then_some(warnings);
        let (accepted, message, code) = match decision.verdict {
            Verdict::Denied(Denial { code, message }) => (false, Some(message), Some(code)),
            _ => (true, None, None),
        };
        Self { accepted, message, code, mutated_object, audit_annotations, warnings }
    }

    pub(crate) fn unreadable(message: String) -> Self {
        Self::new(Decision::denied(400, message), Value::Null)
    }
}

/// The answer about settings: the fields that Kubewarden reads, and warnings for hosts that can show them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingsResponse {
    pub valid: bool,
    /// All mistakes, one on each line.
    pub message: Option<String>,
    /// Settings that are allowed but probably not intended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

pub fn validate_settings(payload: &[u8]) -> SettingsResponse {
    let invalid = |message: String| SettingsResponse { valid: false, message: Some(message), warnings: Vec::new() };
    match Mask::read_all(payload) {
        Err(error) => invalid(format!("the settings are not a JSON document: {error}")),
        Ok(document) => match Settings::from_value(&document) {
            Err(mistakes) => invalid(mistakes.to_string()),
            Ok(settings) => {
                let warnings = settings.warnings().iter().map(ToString::to_string).collect();
                SettingsResponse { valid: true, message: None, warnings }
            }
        },
    }
}
