//! Connects to a cluster.

use std::env;
use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kube::client::ClientBuilder;
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;
use tower::layer::layer_fn;

pub use crate::api_error::without_user_info;
use crate::api_error::{error_chain, error_message};
use crate::api_requests::ApiServer;
use crate::api_requests::Bounded;
pub use crate::api_requests::{RequestTimeout, is_answer_too_large, request_at_most};

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
    #[arg(long, value_name = "TIME", default_value_t)]
    pub request_timeout: RequestTimeout,
}

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("{0}")]
    Unusable(String),
    #[error("no kubeconfig was found: use --kubeconfig, or run the program in a Pod: {0}")]
    NoCluster(String),
}

impl ConnectError {
    fn of_file(file: &Path, error: &KubeconfigError) -> Self {
        Self::Unusable(format!("kubeconfig {}: {}", file.display(), kubeconfig_message(error)))
    }

    fn of_context(context: Option<&str>, error: &KubeconfigError) -> Self {
        Self::Unusable(format!("context {}: {}", context.unwrap_or_default(), kubeconfig_message(error)))
    }
}

impl ClusterArguments {
    pub fn name_a_cluster(&self) -> bool {
        self.kubeconfig.is_some() || self.context.is_some()
    }

    /// A client for the cluster of the kubeconfig, or for the cluster that this process runs in. Each of its requests
    /// has the time limit, and each error of the connection names the URL.
    pub async fn client(&self) -> Result<Client, ConnectError> {
        let mut config = self.config().await?;
        let RequestTimeout(limit) = self.request_timeout;
        // The limit of the request ends before this one, and its error names the URL.
        config.connect_timeout = limit.map(|limit| limit.saturating_mul(2));
        let server = ApiServer::new(&config, self.context_name());
        let builder = ClientBuilder::try_from(config).map_err(|error| {
            let reason = error_message(&error);
            ConnectError::Unusable(format!("the configuration of the cluster can't be used: {reason}"))
        })?;
        Ok(builder.with_layer(&layer_fn(|inner| Bounded::new(inner, server.clone(), limit))).build())
    }

    /// The current context and the URL of the API server, such as `prod (https://10.0.0.1:6443)`; in a Pod only the
    /// URL. `None` if no cluster is configured.
    pub async fn name(&self) -> Option<String> {
        let ApiServer { url, context } = ApiServer::new(&self.config().await.ok()?, self.context_name());
        Some(if let Some(context) = context { format!("{context} ({url})") } else { url })
    }

    fn context_name(&self) -> Option<String> {
        self.context.clone().or_else(|| self.read().ok()?.current_context)
    }

    async fn config(&self) -> Result<Config, ConnectError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        match (&self.kubeconfig, &self.context) {
            (None, None) => match listed_kubeconfigs() {
                Some(files) => of_list(&files, &options).await,
                None => Config::infer().await.map_err(|error| ConnectError::NoCluster(infer_message(&error))),
            },
            (file, context) => {
                let config = Config::from_custom_kubeconfig(self.read()?, &options).await;
                config.map_err(|error| match (file, context, &error) {
                    (_, Some(context), KubeconfigError::LoadContext(_)) => {
                        ConnectError::Unusable(format!("there is no context {context}"))
                    }
                    (Some(file), None, error) => ConnectError::of_file(file, error),
                    (_, context, error) => ConnectError::of_context(context.as_deref(), error),
                })
            }
        }
    }

    /// The namespace that the context names; `None` if it names none, or if there is no kubeconfig, as in a Pod.
    pub fn namespace(&self) -> Option<String> {
        namespace_of(&self.read().ok()?, self.context.as_deref())
    }

    fn read(&self) -> Result<Kubeconfig, ConnectError> {
        match &self.kubeconfig {
            Some(file) => Kubeconfig::read_from(file).map_err(|error| ConnectError::of_file(file, &error)),
            None => listed_kubeconfigs()
                .map_or_else(Kubeconfig::read, |files| merged(&files))
                .map_err(|error| ConnectError::of_context(self.context.as_deref(), &error)),
        }
    }
}

/// The files of `$KUBECONFIG`, if it lists several.
fn listed_kubeconfigs() -> Option<Vec<PathBuf>> {
    let list = env::var_os("KUBECONFIG")?;
    let files: Vec<PathBuf> = env::split_paths(&list).filter(|file| !file.as_os_str().is_empty()).collect();
    (files.len() > 1).then_some(files)
}

/// The configuration from these kubeconfigs or, if they can't be used, from the service account of the Pod.
async fn of_list(files: &[PathBuf], options: &KubeConfigOptions) -> Result<Config, ConnectError> {
    let config = match merged(files) {
        Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, options).await,
        Err(error) => Err(error),
    };
    config.or_else(|error| Config::incluster().map_err(|_| ConnectError::NoCluster(kubeconfig_message(&error))))
}

/// Merges kubeconfigs as kubectl does: files that don't exist are ignored, and the first value wins.
fn merged(files: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    let mut merged: Option<Kubeconfig> = None;
    let mut not_found = None;
    for file in files {
        match Kubeconfig::read_from(file) {
            Ok(next) => {
                merged = Some(match merged {
                    Some(first) => first.merge(next)?,
                    None => next,
                });
            }
            Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == io::ErrorKind::NotFound => {
                not_found = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    let names = || env::join_paths(files).map_or_else(|_| PathBuf::new(), PathBuf::from);
    let not_found = || not_found.unwrap_or_else(|| io::ErrorKind::NotFound.into());
    merged.ok_or_else(|| KubeconfigError::ReadConfig(not_found(), names()))
}

/// The namespace that a context names; without a name, the current context.
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
        other => first_line(&error_chain(other)),
    }
}

/// As [`kubeconfig_message`], for a search for a kubeconfig.
fn infer_message(error: &InferConfigError) -> String {
    match error.source().and_then(|source| source.downcast_ref::<KubeconfigError>()) {
        Some(wrong @ KubeconfigError::Parse(_)) => kubeconfig_message(wrong),
        _ => first_line(&error.to_string()),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
