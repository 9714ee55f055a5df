//! Texts for requests that failed.

use std::error::Error;

/// The message of the API server, or the reason why it can't be reached, in one line and without the names of types.
pub fn error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        kube::Error::Api(status) => format!("the API server answers {}", status.code),
        kube::Error::Service(cause) => error_chain(cause.as_ref()),
        other => error_chain(other),
    }
}

/// The text of the innermost cause of an error. In errors of a connection, the errors around it repeat it, or name no
/// more than the step that failed.
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The text of an error, followed by the texts of its sources that add something.
pub fn error_chain(error: &dyn Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !words.contains(&more) {
            words.push_str(": ");
            words.push_str(&more);
        }
        source = error.source();
    }
    words
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
