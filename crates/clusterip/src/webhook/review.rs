//! `AdmissionReview` in and out.

use serde_json::Value;

use crate::policy::response::AdmissionResponse;

/// Answers admission requests.
pub trait Reviewer: Send + Sync + 'static {
    /// The response to the `request` of an `AdmissionReview`, which is an object. It may block for as
    /// long as one evaluation may take.
    fn review(&self, request: &Value) -> AdmissionResponse;
}
