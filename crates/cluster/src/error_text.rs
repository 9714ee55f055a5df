//! The texts of errors and of their causes, without passwords and tokens.

use std::error::Error;
use std::iter;

use kube::client::AuthError;

/// Another text for an error that prints passwords or tokens; `None` if the error prints none.
pub(crate) fn without_secrets(error: &(dyn Error + 'static)) -> Option<String> {
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
        AuthError::AuthExecRun { cmd, status, .. } => {
            let name = program(cmd).map(|name| format!(" \"{name}\"")).unwrap_or_default();
            Some(format!("the exec plugin{name} of the kubeconfig failed ({status})"))
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
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    loop {
        if let Some(text) = without_secrets(cause) {
            return text;
        }
        match cause.source() {
            Some(source) => cause = source,
            None => return cause.to_string(),
        }
    }
}

/// An error and its causes, the outermost first.
pub(crate) fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    iter::successors(Some(error), |&cause| cause.source())
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

/// A text that should be a URL, without the user name and the password.
pub fn without_user_info(url: &str) -> String {
    let Some((before, host)) = url.rsplit_once('@') else { return url.to_owned() };
    let scheme = before.split_once("://").map(|(scheme, _)| format!("{scheme}://"));
    format!("{}{host}", scheme.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

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
