//! Reads an `AdmissionReview` and writes the answer.

use std::fmt;

use axum::http::StatusCode;
use clusterip_cluster::http::server::ErrorResponse;
use clusterip_cluster::panics;
use clusterip_cluster::policy::admission_review::{self, AdmissionResponse};
use clusterip_core::json::describe;
use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::webhook::admission_metrics::ResourceKind;

pub trait Reviewer: Send + Sync + 'static {
    /// The response to the `request` of an `AdmissionReview`, which has the fields that decisions use. It may block for as
    /// long as one evaluation may take.
    fn review(&self, request: &Value) -> AdmissionResponse;

    /// The response to a request that could not be read completely, or whose review did not begin, did not end in time,
    /// or panicked. `request` may have only the fields that say what it is about. This call does not block.
    fn unreviewed(&self, request: &Value, code: u16, reason: &str) -> AdmissionResponse {
        AdmissionResponse::refused(request, code, reason.to_owned())
    }

    /// The reason why nothing can be reviewed yet. Until then, the `failurePolicy` of the webhook decides.
    fn not_begun(&self) -> Option<String> {
        None
    }
}

pub const BUSY: u16 = 429;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse,
}

/// The answer to an `AdmissionReview`, both as JSON. If the review panics, only this request is answered without one.
pub fn answer(reviewer: &dyn Reviewer, body: &[u8]) -> Result<Vec<u8>, ErrorResponse> {
    let not_json = |error| unreadable(format!("the body is not JSON: {error}"));
    let mut review = admission_review::read(body).map_err(not_json)?;
    expect_text(&review, "apiVersion", API_VERSION)?;
    expect_text(&review, "kind", KIND)?;
    let request = match review.get_mut("request") {
        Some(request @ Value::Object(_)) => request.take(),
        other => return Err(missing("request", other.as_deref(), "an object")),
    };
    let uid = match request.get("uid") {
        Some(Value::String(uid)) if !uid.is_empty() => uid.clone(),
        other => return Err(missing("request.uid", other, "a string")),
    };
    let mut response = panics::catch(|| reviewer.review(&request)).unwrap_or_else(|cause| {
        reviewer.unreviewed(&request, 500, &format!("the review panicked: {cause}; see the log of clusterip"))
    });
    response.uid = uid;
    written(response)
}

/// The answer to an `AdmissionReview` of which only the first `part` was read. Without it, the `failurePolicy` would
/// decide, and a client could bypass the policy with a request that is too large. `None` if the part does not say what
/// the request is about: API servers write these fields first.
pub fn answer_unread(reviewer: &dyn Reviewer, part: &[u8], code: u16, reason: &str) -> Option<Vec<u8>> {
    let request = identity(part);
    let uid = request.get("uid").and_then(Value::as_str).filter(|uid| !uid.is_empty())?.to_owned();
    request.get("kind")?;
    let mut response = reviewer.unreviewed(&Value::Object(request), code, reason);
    response.uid = uid;
    written(response).ok()
}

/// The namespace of a request; empty for an object of the cluster, `None` if the first `part` does not say it: API
/// servers write the namespace before the operation, and the name before both.
pub fn namespace_of(part: &[u8]) -> Option<String> {
    let identity = identity(part);
    let namespace = identity.get("namespace").or_else(|| identity.get("operation").map(|_| &Value::Null))?;
    Some(namespace.as_str().unwrap_or_default().to_owned())
}

fn identity(part: &[u8]) -> Map<String, Value> {
    let mut request = Map::new();
    let mut reader = serde_json::Deserializer::from_slice(part);
    // This usually ends with an error, because the rest of the body is missing.
    let _ = Identity { in_request: false, found: &mut request }.deserialize(&mut reader);
    request
}

fn written(response: AdmissionResponse) -> Result<Vec<u8>, ErrorResponse> {
    let answered = Answered { api_version: API_VERSION, kind: KIND, response };
    serde_json::to_vec(&answered).map_err(|error| {
        let message = format!("the answer can't be written as JSON: {error}");
        ErrorResponse(StatusCode::INTERNAL_SERVER_ERROR, message)
    })
}

struct Identity<'f> {
    in_request: bool,
    found: &'f mut Map<String, Value>,
}

impl<'de> DeserializeSeed<'de> for Identity<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Identity<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an AdmissionReview")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        const FIELDS: [&str; 6] = ["uid", "kind", "namespace", "name", "operation", "dryRun"];
        while let Some(key) = map.next_key::<String>()? {
            if !self.in_request && key == "request" {
                map.next_value_seed(Identity { in_request: true, found: &mut *self.found })?;
            } else if self.in_request && FIELDS.contains(&key.as_str()) {
                let value = map.next_value()?;
                self.found.insert(key, value);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

fn expect_text(review: &Value, field: &str, expected: &str) -> Result<(), ErrorResponse> {
    let found = review.get(field);
    if found.and_then(Value::as_str) == Some(expected) { Ok(()) } else { Err(missing(field, found, expected)) }
}

/// The error about a field. Bodies come from anywhere and messages are logged, so only the start of a text is shown.
fn missing(field: &str, found: Option<&Value>, expected: &str) -> ErrorResponse {
    let found = found.map_or_else(|| "missing".to_owned(), describe);
    unreadable(format!("{field} is {found}, expected {expected}"))
}

fn unreadable(why: String) -> ErrorResponse {
    ErrorResponse(StatusCode::BAD_REQUEST, why)
}

pub fn resource_kind(request: &Value) -> ResourceKind {
    let kind = |field: &str| request.get("kind").and_then(|kind| kind.get(field)).and_then(Value::as_str);
    match (kind("group").unwrap_or_default(), kind("kind")) {
        ("", Some("Service")) => ResourceKind::Service,
        ("", Some("Node")) => ResourceKind::Node,
        _ => ResourceKind::Other,
    }
}
