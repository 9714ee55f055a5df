//! Connects to a cluster.

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use jiff::SignedDuration;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tower::layer::layer_fn;

pub use crate::api_error::without_user_info;
use crate::api_error::{error_chain, error_message};
use crate::api_requests::{ApiServer, bounded};
pub use crate::api_requests::{answer, counted_bytes, is_answer_too_large, request_at_most};

/// The arguments of every command that uses a cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct ClusterArguments {
    /// The kubeconfig for the cluster [default: $KUBECONFIG, ~/.kube/config, or the service account of the Pod]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub context: Option<String>,
    /// The time limit for a request to the API server, such as 500ms, 10s or 2m; 0 for no limit
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time_limit)]
    pub request_timeout: Duration,
}

/// Reads a time limit as kubectl does: a number without a unit is a number of seconds.
fn time_limit(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| format!("{text}s"));
    let limit: Option<SignedDuration> = seconds.as_deref().unwrap_or(text).parse().ok();
    let limit = limit.and_then(|limit| Duration::try_from(limit).ok());
    limit.ok_or("expected a number with a unit, such as 500ms, 10s, 2m or 1h, or 0 for no limit")
}

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("{0}")]
    Unusable(String),
    #[error("no kubeconfig was found: use --kubeconfig, or run the program in a Pod: {0}")]
    NoCluster(String),
}

impl ClusterArguments {
    pub fn name_a_cluster(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// A client whose requests have the time limit, and whose errors of the connection name the URL.
    pub async fn client(&self) -> Result<Client, ConnectError> {
        let mut config = self.config().await?;
        let limit = Some(self.request_timeout).filter(|limit| !limit.is_zero());
        // The limit of the request ends before this one, and its error names the URL.
        config.connect_timeout = limit.map(|limit| limit.saturating_mul(2));
        let server = ApiServer::new(&config, self.context_name());
        let builder = ClientBuilder::try_from(config).map_err(|error| {
            let reason = error_message(&error);
            ConnectError::Unusable(format!("the configuration of the cluster can't be used: {reason}"))
        })?;
        Ok(builder.with_layer(&layer_fn(|inner| bounded(inner, server.clone(), limit))).build())
    }

    /// The context and the URL of the API server, such as `prod (https://10.0.0.1:6443)`; in a Pod only the URL.
    pub async fn name(&self) -> Option<String> {
        let ApiServer { url, context } = ApiServer::new(&self.config().await.ok()?, self.context_name());
        Some(if let Some(context) = context { format!("{context} ({url})") } else { url })
    }

    /// The addresses of the API server that the configuration names; none if that can't be read.
    pub async fn server_addresses(&self) -> Vec<SocketAddr> {
        let Ok(Config { cluster_url: url, .. }) = self.config().await else { return Vec::new() };
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let found = tokio::net::lookup_host((host, url.port_u16().unwrap_or(443))).await;
        found.map(Iterator::collect).unwrap_or_default()
    }

    fn context_name(&self) -> Option<String> {
        self.context.clone().or_else(|| self.read().ok()?.current_context)
    }

    async fn config(&self) -> Result<Config, ConnectError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let config = match self.read() {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
            Err(error) => Err(error),
        };
        config.or_else(|error| {
            let reason = kubeconfig_message(&error);
            Err(ConnectError::Unusable(match (&self.kubeconfig, &self.context) {
                (_, Some(context)) if matches!(error, KubeconfigError::LoadContext(_)) => {
                    format!("there is no context {context}")
                }
                (Some(file), _) => format!("kubeconfig {}: {reason}", file.display()),
                (None, Some(context)) => format!("context {context}: {reason}"),
                // The service account of the Pod.
                (None, None) => return Config::incluster().map_err(|_| ConnectError::NoCluster(reason)),
            }))
        })
    }

    /// The namespace that the context names; `None` if it names none, or if there is no kubeconfig, as in a Pod.
    pub fn namespace(&self) -> Option<String> {
        namespace_of(&self.read().ok()?, self.context.as_deref())
    }

    fn read(&self) -> Result<Kubeconfig, KubeconfigError> {
        match &self.kubeconfig {
            Some(file) => Kubeconfig::read_from(file),
            None => listed_kubeconfigs().map_or_else(Kubeconfig::read, |files| merged(&files)),
        }
    }
}

/// The files of `$KUBECONFIG`, if it lists several.
fn listed_kubeconfigs() -> Option<Vec<PathBuf>> {
    let list = env::var_os("KUBECONFIG")?;
    let files: Vec<PathBuf> = env::split_paths(&list).filter(|file| !file.as_os_str().is_empty()).collect();
    (files.len() > 1).then_some(files)
}

/// Merges kubeconfigs as kubectl does: files that don't exist are ignored, and the first value wins.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    let mut existing = files.iter().filter(|file| !matches!(file.try_exists(), Ok(false))).map(Kubeconfig::read_from);
    // The error about a missing file names all.
    let none = || Kubeconfig::read_from(env::join_paths(files).unwrap_or_default());
    let first = existing.next().unwrap_or_else(none)?;
    existing.try_fold(first, |merged, next| merged.merge(next?))
}

fn namespace_of(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let named = kubeconfig.contexts.iter().find(|named| named.name == name)?;
    named.context.as_ref()?.namespace.clone().filter(|namespace| !namespace.is_empty())
}

/// The text of an error of a kubeconfig, without the content of the file: it may have passwords and tokens.
fn kubeconfig_message(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(wrong) => match wrong.location() {
            Some(at) => format!("failed to parse kubeconfig YAML at line {}, column {}", at.line(), at.column()),
            None => "failed to parse kubeconfig YAML".to_owned(),
        },
        other => error_chain(other).lines().next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
