//! The API server, as errors name it.

use std::fmt;

use kube::Config;
use thiserror::Error;

/// An API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiServer {
    /// The URL, without a user name and password, and without a slash at the end.
    pub(crate) url: String,
    /// The context of the kubeconfig; `None` without a kubeconfig, as in a Pod.
    pub(crate) context: Option<String>,
}

impl ApiServer {
    /// The API server of this configuration, which was read from this context.
    pub(crate) fn new(config: &Config, context: Option<String>) -> Self {
        let url = &config.cluster_url;
        let authority = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        let url = format!("{}://{host}{}", url.scheme_str().unwrap_or("http"), url.path().trim_end_matches('/'));
        Self { url, context }
    }

    /// The message for a response 401.
    pub(crate) fn unauthorized(&self) -> String {
        let remedy = match self.context {
            Some(_) => {
                "check the user of the context, whose token or certificate may have expired, and that --kubeconfig and \
                 --context name the right cluster"
            }
            None => "check the token of the service account of this Pod",
        };
        format!("the API server {self} refuses the request: Unauthorized; {remedy}")
    }

    /// The message for a response that expects HTTPS.
    pub(crate) fn expects_https(&self) -> String {
        format!(
            "the API server {self} refuses the request: it expects HTTPS; write https:// instead of http:// in the \
             cluster's `server` in the kubeconfig"
        )
    }

    fn remedy(&self) -> &'static str {
        match self.context {
            Some(_) => "check that it runs, and that --kubeconfig and --context name the right cluster",
            None => "check the network between this Pod and the API server",
        }
    }
}

impl fmt::Display for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.context {
            Some(context) => write!(f, "{} (context {context})", self.url),
            None => f.write_str(&self.url),
        }
    }
}

/// An API server that can't be reached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the API server {server} can't be reached: {reason}; {}", .server.remedy())]
pub struct Unreachable {
    pub(crate) server: ApiServer,
    /// The error of the connection.
    pub(crate) reason: String,
}
