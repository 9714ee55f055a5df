//! Reads the request of an evaluation from a file.

use clusterip_core::json::{describe, quote};
use serde_json::Value;
use thiserror::Error;

use crate::yaml::{self, YamlError};

/// A text that does not contain an `AdmissionRequest`.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// The text is neither JSON nor YAML.
    #[error(transparent)]
    Text(#[from] YamlError),
    /// The value is not an object.
    #[error("expected an AdmissionRequest, or an AdmissionReview with one, found {0}")]
    Type(String),
    /// The object is a Kubernetes object of another kind.
    #[error("expected an AdmissionRequest, found an object of kind {0}: `clusterip plan` takes manifests")]
    Manifest(String),
    /// The object is an `AdmissionReview` without a request, for example an answer.
    #[error("an AdmissionReview whose `request` is {0}: save the review as received, before it is answered")]
    Review(String),
    /// A field that every request has is missing or has the wrong type.
    #[error("not an AdmissionRequest: `{field}` is {found}, expected {expected}")]
    Part {
        /// The name of the field.
        field: &'static str,
        /// The value that was found.
        found: String,
        /// The type that is expected.
        expected: &'static str,
    },
}

/// Reads an `AdmissionRequest`, or takes it out of an `AdmissionReview`, in JSON or YAML. Only the presence and type of
/// the required fields are checked; the policy checks the rest.
///
/// # Errors
/// [`RequestError`] if there is no request.
pub fn read(text: &str) -> Result<Value, RequestError> {
    // JSON is tried first, because some JSON escapes are not valid YAML.
    let mut document = match serde_json::from_str(text) {
        Ok(document) => document,
        Err(_) => yaml::single(text)?,
    };
    let Value::Object(fields) = &mut document else { return Err(RequestError::Type(describe(&document))) };
    let request = match fields.get("kind") {
        Some(Value::String(kind)) if kind != "AdmissionReview" => return Err(RequestError::Manifest(quote(kind))),
        Some(Value::String(_)) => match fields.remove("request") {
            Some(request @ Value::Object(_)) => request,
            other => return Err(RequestError::Review(found(other.as_ref()))),
        },
        None if fields.get("request").is_some_and(Value::is_object) => fields.remove("request").unwrap_or_default(),
        _ => document,
    };
    let part = |field: &'static str, expected: &'static str, fits: fn(&Value) -> bool| match request.get(field) {
        Some(value) if fits(value) => Ok(()),
        other => Err(RequestError::Part { field, found: found(other), expected }),
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
