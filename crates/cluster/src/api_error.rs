//! Texts for requests that failed.

use std::fmt::Display;

use thiserror::Error;

use crate::api_requests;
use crate::api_server::Unreachable;
pub use crate::error_text::error_chain;
use crate::error_text::without_secrets;

/// A request to the API server that failed: the cause of an error that ends a command. The text of that error contains
/// the text of its cause.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct RequestFailure {
    message: String,
    is_forbidden: bool,
    unreachable: Option<Box<Unreachable>>,
}

impl RequestFailure {
    /// Whether the user lacks the permission for the request.
    pub fn is_forbidden(&self) -> bool {
        self.is_forbidden
    }

    /// The API server, if the request failed because the API server can't be reached.
    pub fn unreachable(&self) -> Option<&Unreachable> {
        self.unreachable.as_deref()
    }
}

impl From<&kube::Error> for RequestFailure {
    fn from(error: &kube::Error) -> Self {
        let is_forbidden = matches!(error, kube::Error::Api(status) if status.code == 403);
        let unreachable = api_requests::unreachable(error).map(Box::new);
        Self { message: error_message(error), is_forbidden, unreachable }
    }
}

/// The error `what: CAUSE`. The [`RequestFailure`] is among its causes.
pub(crate) fn failed(what: impl Display, error: &kube::Error) -> anyhow::Error {
    let failure = RequestFailure::from(error);
    let text = format!("{what}: {failure}");
    anyhow::Error::new(failure).context(text)
}

/// Whether a request failed because the API server did not answer in time. Fewer objects may take less time.
pub(crate) fn is_too_slow(error: &kube::Error) -> bool {
    api_requests::is_unanswered(error)
}

/// The message of the API server, or the reason why it can't be reached, in one line and without the names of types.
pub fn error_message(error: &kube::Error) -> String {
    if let Some(text) = without_secrets(error) {
        return text;
    }
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("the API server answers {}", status.code),
        kube::Error::Service(cause) => without_secrets(cause.as_ref()).unwrap_or_else(|| error_chain(cause.as_ref())),
        other => error_chain(other),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn failure_texts_name_the_cause() {
        struct Case {
            name: &'static str,
            error: kube::Error,
            expected: &'static str,
        }
        let cases = [
            Case {
                name: "the API server's own",
                error: kube::Error::Api(Box::new(Status::failure("it is gone", "NotFound"))),
                expected: "it is gone",
            },
            Case {
                name: "none",
                error: kube::Error::Api(Box::new(Status { code: 503, ..Status::default() })),
                expected: "the API server answers 503",
            },
            Case {
                name: "a chain",
                error: kube::Error::ReadEvents(std::io::Error::other("cut")),
                expected: "Error reading events stream: cut",
            },
            Case {
                name: "a connection",
                error: kube::Error::Service(Box::new(std::io::Error::other("GET https://a/version: refused"))),
                expected: "GET https://a/version: refused",
            },
        ];
        for Case { name, error, expected } in cases {
            assert_eq!(error_message(&error), expected, "{name}");
        }
    }
}
