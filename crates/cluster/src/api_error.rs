//! Texts for errors and requests that failed, without passwords and tokens.

use std::error::Error as StdError;
use std::fmt::Display;
use std::iter;

use kube::client::AuthError;
use thiserror::Error;

/// A request to the API server that got no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}: {reason}")]
pub(crate) struct RequestError {
    /// The method and URL.
    pub name: String,
    /// The URL of the API server, and the context of the kubeconfig.
    pub server: String,
    /// Whether this program has no kubeconfig.
    pub in_pod: bool,
    pub reason: String,
    pub cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    TimeLimit,
    Connection,
    /// The request was not sent, because the client has no token.
    Login,
}

/// Why the API server can't be reached, with a remedy, if the request failed because of that.
fn unreachable(error: &kube::Error) -> Option<String> {
    let RequestError { server, in_pod, reason, cause, .. } = causes(error).find_map(|cause| cause.downcast_ref())?;
    let remedy = match in_pod {
        false => "check that it runs, and that --kubeconfig and --context name the right cluster",
        true => "check the network between this Pod and the API server",
    };
    (*cause != Cause::Login).then(|| format!("the API server {server} can't be reached: {reason}; {remedy}"))
}

/// Whether the API server did not answer within the time limit of a request. Fewer objects may take less time.
pub(crate) fn is_too_slow(error: &kube::Error) -> bool {
    let mut errors = causes(error).filter_map(|cause| cause.downcast_ref::<RequestError>());
    errors.any(|error| error.cause == Cause::TimeLimit)
}

/// A request to the API server that failed: the cause of an error that ends a command. The text of that error contains
/// the text of its cause.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct RequestFailure {
    message: String,
    pub is_forbidden: bool,
    /// Why the API server can't be reached, with a remedy, if that is the reason.
    pub unreachable: Option<String>,
}

impl From<&kube::Error> for RequestFailure {
    fn from(error: &kube::Error) -> Self {
        let is_forbidden = matches!(error, kube::Error::Api(status) if status.code == 403);
        Self { message: error_message(error), is_forbidden, unreachable: unreachable(error) }
    }
}

/// The error `what: CAUSE`. The [`RequestFailure`] is among its causes.
pub fn failed(what: impl Display, error: &kube::Error) -> anyhow::Error {
    let failure = RequestFailure::from(error);
    let text = format!("{what}: {failure}");
    anyhow::Error::new(failure).context(text)
}

/// What was read or done; nothing if the API server answers 404, because it lacks the object or does not serve the kind.
pub fn if_found<T: Default>(answer: kube::Result<T>) -> kube::Result<T> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(T::default()),
        answer => answer,
    }
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

/// Another text for an error that prints passwords or tokens; `None` if the error prints none.
pub(crate) fn without_secrets(error: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<kube::Error>() {
        return match error {
            kube::Error::Auth(error) => without_secrets(error),
            kube::Error::ProxyProtocolUnsupported { proxy_url }
            | kube::Error::ProxyProtocolDisabled { proxy_url, .. } => Some(format!(
                "the proxy {} of the kubeconfig has a protocol that is not supported",
                without_user_info(&proxy_url.to_string())
            )),
            _ => None,
        };
    }
    match error.downcast_ref::<AuthError>()? {
        AuthError::AuthExecRun { cmd, out } => {
            let name = program(cmd).map(|name| format!(" \"{name}\"")).unwrap_or_default();
            Some(format!("the exec plugin{name} of the kubeconfig failed ({})", out.status))
        }
        AuthError::AuthExecParse(_) => {
            Some("the output of the exec plugin of the kubeconfig is not an ExecCredential".to_owned())
        }
        _ => None,
    }
}

/// The program of a command that was printed with `{:?}`, such as `PASSWORD="x" "program" "argument"`: the first text
/// in quotes that is not the value of a variable.
fn program(command: &str) -> Option<&str> {
    let mut rest = command;
    loop {
        let (before, quoted) = rest.split_once('"')?;
        let mut escaped = false;
        let end = quoted.find(|c: char| {
            let is_end = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            is_end
        })?;
        let (text, after) = (quoted.get(..end)?, quoted.get(end + 1..)?);
        if !before.ends_with('=') {
            return Some(text);
        }
        rest = after;
    }
}

/// The text of the innermost cause of an error. In errors of a connection, the errors around it repeat it, or name no
/// more than the step that failed.
pub(crate) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let without_secrets = causes(error).find_map(without_secrets);
    without_secrets.or_else(|| Some(causes(error).last()?.to_string())).unwrap_or_default()
}

pub(crate) fn causes<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    iter::successors(Some(error), |&cause| cause.source())
}

/// The text of an error, followed by the texts of its sources that add something.
pub fn error_chain(error: &dyn StdError) -> String {
    let sources = iter::successors(error.source(), |&error| error.source()).map(ToString::to_string);
    sources.fold(error.to_string(), |text, more| if text.contains(&more) { text } else { format!("{text}: {more}") })
}

/// A text that should be a URL, without the user name and the password.
pub fn without_user_info(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = before.split_once("://").map(|(scheme, _)| format!("{scheme}://"));
    format!("{}{host}", scheme.unwrap_or_default())
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

    #[test]
    fn program_of_a_command_is_found() {
        let cases = [
            (r#""aws" "eks" "get-token""#, Some("aws")),
            (r#"A="x \" y" B="z" "/bin/login" "--secret=x""#, Some("/bin/login")),
            (r#"env -u C A="x" "login""#, Some("login")),
            ("gcloud config", None),
        ];
        for (command, expected) in cases {
            assert_eq!(program(command), expected, "{command}");
        }
    }
}
