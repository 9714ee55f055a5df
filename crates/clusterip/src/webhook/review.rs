//! `AdmissionReview` in and out.

use std::any::Any;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

use serde::Serialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::metrics::About;
use crate::policy::response::{AdmissionResponse, Status};

/// Answers admission requests.
pub trait Reviewer: Send + Sync + 'static {
    /// The response to the `request` of an `AdmissionReview`, which is an object. It may block for as
    /// long as one evaluation may take.
    fn review(&self, request: &Value) -> AdmissionResponse;

    /// The response to a request that could not be read whole, for `reason`. Of the `request` there are only the fields
    /// that say what it is about. It does not block.
    fn review_unread(&self, request: &Value, code: u16, reason: &str) -> AdmissionResponse {
        AdmissionResponse::refused(request, code, reason.to_owned())
    }

    /// Why nothing can be reviewed yet, where that is so: requests get no answer then, and the
    /// `failurePolicy` of the webhook configuration decides.
    fn not_begun(&self) -> Option<String> {
        None
    }
}

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// A body that is no `AdmissionReview` to answer.
#[derive(Debug, Error)]
pub enum ReviewError {
    /// It is no JSON.
    #[error("the body is no JSON: {0}")]
    NotJson(serde_json::Error),
    /// It is JSON, and of something else.
    #[error("{field} is {found}, where only {expected} is answered")]
    Other {
        /// `apiVersion` or `kind`.
        field: &'static str,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
    /// A part that an answer needs is not there.
    #[error("{field} is {found}, where {expected} must be")]
    Missing {
        /// Its path.
        field: &'static str,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
    /// The answer can't be written.
    #[error("the answer can't be written as JSON: {0}")]
    Answer(serde_json::Error),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse,
}

/// The answer to an `AdmissionReview`, both as JSON. A reviewer that panics denies this one request, but for
/// one about a Node: that goes on, with a warning.
///
/// # Errors
/// [`ReviewError`] where the body is none.
pub fn answer(reviewer: &dyn Reviewer, body: &[u8]) -> Result<Vec<u8>, ReviewError> {
    let mut review: Value = serde_json::from_slice(body).map_err(ReviewError::NotJson)?;
    only(&review, "apiVersion", API_VERSION)?;
    only(&review, "kind", KIND)?;
    let request = match review.get_mut("request") {
        Some(request @ Value::Object(_)) => request.take(),
        other => return Err(missing("request", other.as_deref(), "an object")),
    };
    let uid = match request.get("uid") {
        Some(Value::String(uid)) if !uid.is_empty() => uid.clone(),
        other => return Err(missing("request.uid", other, "a text")),
    };
    let mut response = match panic::catch_unwind(AssertUnwindSafe(|| reviewer.review(&request))) {
        Ok(response) => response,
        Err(cause) => broke_off(&request, cause.as_ref()),
    };
    response.uid = uid;
    written(response)
}

/// The answer to an `AdmissionReview` of which only the first `part` was read, for `reason`. Without an answer the
/// `failurePolicy` of the webhook configuration would decide, and whoever makes a request too large would pass.
///
/// Nothing where the part does not say what it is about: API servers write that first.
pub fn answer_unread(reviewer: &dyn Reviewer, part: &[u8], code: u16, reason: &str) -> Option<Vec<u8>> {
    let mut request = Map::new();
    let mut reader = serde_json::Deserializer::from_slice(part);
    // It ends with an error: the rest is not there.
    let _ = Identity { of: Level::Review, found: &mut request }.deserialize(&mut reader);
    let uid = request.get("uid").and_then(Value::as_str).filter(|uid| !uid.is_empty())?.to_owned();
    request.get("kind")?;
    let mut response = reviewer.review_unread(&Value::Object(request), code, reason);
    response.uid = uid;
    written(response).ok()
}

fn written(response: AdmissionResponse) -> Result<Vec<u8>, ReviewError> {
    let answered = Answered { api_version: API_VERSION, kind: KIND, response };
    serde_json::to_vec(&answered).map_err(ReviewError::Answer)
}

/// Reads the fields of a request that say what it is about, as far as they are there.
struct Identity<'f> {
    of: Level,
    found: &'f mut Map<String, Value>,
}

enum Level {
    Review,
    Request,
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
            match self.of {
                Level::Review if key == "request" => {
                    map.next_value_seed(Identity { of: Level::Request, found: &mut *self.found })?;
                }
                Level::Request if FIELDS.contains(&key.as_str()) => {
                    let value = map.next_value()?;
                    self.found.insert(key, value);
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

fn only(review: &Value, field: &'static str, expected: &'static str) -> Result<(), ReviewError> {
    let found = review.get(field);
    if found.and_then(Value::as_str) == Some(expected) {
        return Ok(());
    }
    Err(ReviewError::Other { field, found: shown(found), expected })
}

fn missing(field: &'static str, found: Option<&Value>, expected: &'static str) -> ReviewError {
    ReviewError::Missing { field, found: shown(found), expected }
}

/// What stands somewhere, in a few words: bodies come from anywhere, and messages are logged.
fn shown(found: Option<&Value>) -> String {
    const LONGEST: usize = 60;
    match found {
        None => "not there".to_owned(),
        Some(Value::Null) => "null".to_owned(),
        Some(Value::Bool(_)) => "a boolean".to_owned(),
        Some(Value::Number(_)) => "a number".to_owned(),
        Some(Value::Array(_)) => "a list".to_owned(),
        Some(Value::Object(_)) => "an object".to_owned(),
        Some(Value::String(text)) if text.chars().count() > LONGEST => {
            format!("{:?}…", text.chars().take(LONGEST).collect::<String>())
        }
        Some(Value::String(text)) => format!("{text:?}"),
    }
}

fn broke_off(request: &Value, cause: &(dyn Any + Send)) -> AdmissionResponse {
    let text = |field: &str| request.get(field).and_then(Value::as_str).unwrap_or_default();
    let (namespace, name) = (text("namespace"), text("name"));
    let cause = cause.downcast_ref::<&str>().copied().or_else(|| cause.downcast_ref::<String>().map(String::as_str));
    let cause = cause.unwrap_or("for an unknown reason");
    let kind = about(request);
    tracing::error!(kind = kind.as_str(), namespace, name, cause, "the review of a request broke off");
    let subject = if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") };
    let message = format!("the review of {subject} broke off: {cause}; see the log of clusterip");
    let allowed = kind == About::Node;
    AdmissionResponse {
        uid: String::new(),
        allowed,
        patch_type: None,
        patch: None,
        status: (!allowed).then(|| Status { message: Some(message.clone()), code: Some(500) }),
        audit_annotations: None,
        warnings: allowed.then(|| vec![message]),
    }
}

/// What a request is about.
pub fn about(request: &Value) -> About {
    let kind = |field: &str| request.get("kind").and_then(|kind| kind.get(field)).and_then(Value::as_str);
    match (kind("group").unwrap_or_default(), kind("kind")) {
        ("", Some("Service")) => About::Service,
        ("", Some("Node")) => About::Node,
        _ => About::Other,
    }
}
