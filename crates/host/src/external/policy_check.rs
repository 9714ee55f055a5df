//! Asks the policy whether a Service may have the external addresses that it has recorded.
//!
//! If the Service was created, or an address was recorded by hand, while no webhook was registered, the policy has not
//! checked the addresses yet.

use std::sync::{Arc, RwLock};

use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, RECORD_ANNOTATION};
use clusterip_core::answer::Answer;
use clusterip_core::external::Held;
use serde_json::{Map, Value, json};

use crate::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};
use crate::live_settings::LiveSettings;
use crate::policy::host_calls::HostCalls;
use crate::policy::module::{Module, ModuleError};
use crate::policy::service_request::ServiceRequest;

/// Why a Service may not have the addresses that it has recorded; `None` if it may. The addresses of other Services
/// are not taken into account.
///
/// # Errors
/// [`ModuleError`] if the policy does not answer.
pub fn refusal(
    module: &Module,
    settings: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    service: &Value,
) -> Result<Option<String>, ModuleError> {
    let calls = Arc::new(SnapshotCalls::new(Arc::clone(snapshot)));
    refusal_of(module, settings, calls, &recorded_fields(service))
}

/// The fields of a Service that the policy gets to decide about its record.
pub(super) fn recorded_fields(service: &Value) -> Value {
    bare(service, &[], &[RECORD_ANNOTATION])
}

/// As [`refusal`], for the [`recorded_fields`] of a Service and with these look-ups.
///
/// # Errors
/// As [`refusal`].
pub(super) fn refusal_of(
    module: &Module,
    settings: &LiveSettings,
    calls: Arc<dyn HostCalls>,
    object: &Value,
) -> Result<Option<String>, ModuleError> {
    let answer = ask_policy(module, settings, calls, object)?;
    if !answer.accepted {
        return Ok(Some(answer.message.unwrap_or_default()));
    }
    let record = |object: &Value| {
        let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
        annotations.and_then(|annotations| annotations.get(RECORD_ANNOTATION)).cloned()
    };
    let changed = answer.mutated_object.as_ref().filter(|after| record(after) != record(object));
    Ok(changed.map(|_| "the policy would give it other addresses".to_owned()))
}

/// Why a Service may not claim the addresses that it claims besides its record; `None` if it may. The addresses of
/// other Services are not taken into account.
///
/// # Errors
/// [`ModuleError`] if the policy does not answer.
pub fn claim_refusal(
    module: &Module,
    settings: &LiveSettings,
    snapshot: &Arc<RwLock<Snapshot>>,
    service: &Value,
) -> Result<Option<String>, ModuleError> {
    let object = bare(service, &["externalIPs", "loadBalancerIP"], &FOREIGN_ANNOTATIONS);
    let calls = Arc::new(SnapshotCalls::new(Arc::clone(snapshot)));
    let answer = ask_policy(module, settings, calls, &object)?;
    Ok((!answer.accepted).then(|| answer.message.unwrap_or_default()))
}

fn ask_policy(
    module: &Module,
    settings: &LiveSettings,
    calls: Arc<dyn HostCalls>,
    object: &Value,
) -> Result<Answer, ModuleError> {
    let request = ServiceRequest { uid: "external", username: "clusterip", object, old: None, dry_run: true };
    // The other addresses of the Service are decided about elsewhere, so the policy gets no settings for them.
    let document = json!({"external": settings.document.get("external").unwrap_or(&Value::Null)});
    module.evaluate_with_held(&request, &document, &Held::default(), calls)
}

/// Reduces a Service to the fields on which the policy's decision depends, plus these fields of its `spec` and these
/// annotations.
fn bare(service: &Value, fields: &[&str], annotations: &[&str]) -> Value {
    let of = |path: &str, keys: &[&str]| -> Map<String, Value> {
        let fields = service.pointer(path).and_then(Value::as_object).into_iter().flatten();
        let kept = fields.filter(|(key, _)| keys.contains(&key.as_str()));
        kept.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let mut metadata = of("/metadata", &["namespace", "name", "labels"]);
    metadata.insert("annotations".to_owned(), of("/metadata/annotations", annotations).into());
    const SPEC: [&str; 6] = ["type", "loadBalancerClass", "ipFamilies", "ipFamilyPolicy", "clusterIP", "clusterIPs"];
    let spec = of("/spec", &[&SPEC, fields].concat());
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}
