//! Reads the request of an evaluation from a file.

use anyhow::bail;
use clusterip_core::json::{describe, quote};
use serde_json::Value;

use crate::yaml;

/// Reads an `AdmissionRequest`, or takes it out of an `AdmissionReview`, in JSON or YAML. Only the presence and type of
/// the required fields are checked; the policy checks the rest.
pub fn read(text: &str) -> anyhow::Result<Value> {
    // JSON is tried first, because some JSON escapes are not valid YAML.
    let mut document = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(_) => yaml::single(text)?,
    };
    let Value::Object(fields) = &mut document else {
        let found = describe(&document);
        bail!("expected an AdmissionRequest, or an AdmissionReview with one, found {found}");
    };
    let request = match fields.get("kind") {
        Some(Value::String(kind)) if kind != "AdmissionReview" => {
            let kind = quote(kind);
            bail!("expected an AdmissionRequest, found an object of kind {kind}: `clusterip plan` takes manifests");
        }
        Some(Value::String(_)) => match fields.remove("request") {
            Some(request @ Value::Object(_)) => request,
            other => {
                let found = found(other.as_ref());
                bail!(
                    "an AdmissionReview whose `request` is {found}: save the review as received, before it is answered"
                );
            }
        },
        None if fields.get("request").is_some_and(Value::is_object) => fields.remove("request").unwrap_or_default(),
        _ => document,
    };
    let part = |field: &'static str, expected: &'static str, fits: fn(&Value) -> bool| match request.get(field) {
        Some(value) if fits(value) => Ok(()),
        other => bail!("not an AdmissionRequest: `{field}` is {}, expected {expected}", found(other)),
    };
    // The fields that Kubernetes always sends and kwctl requires.
    part("uid", "a string", Value::is_string)?;
    part("kind", "an object with group, version and kind", Value::is_object)?;
    part("resource", "an object with group, version and resource", Value::is_object)?;
    part("operation", "a string such as CREATE", Value::is_string)?;
    part("userInfo", "an object, possibly empty", Value::is_object)?;
    Ok(request)
}

fn found(value: Option<&Value>) -> String {
    value.map_or_else(|| "missing".to_owned(), describe)
}
