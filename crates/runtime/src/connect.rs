//! Connects to a cluster.

use std::path::{Path, PathBuf};

use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use thiserror::Error;

/// Why there is no client for a cluster.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The kubeconfig can't be used.
    #[error("kubeconfig {}", .file.display())]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        source: KubeconfigError,
    },
    /// No cluster is configured.
    #[error("no cluster: give --kubeconfig, or run it in a Pod")]
    NoCluster(#[source] InferConfigError),
    /// The configuration can't be used.
    #[error(transparent)]
    Client(#[from] kube::Error),
}

/// A client for the cluster of a kubeconfig, or for the cluster that this process runs in.
///
/// # Errors
/// If the file can't be used, or no cluster is configured.
pub async fn client(kubeconfig: Option<&Path>) -> Result<Client, ConnectError> {
    Ok(Client::try_from(config(kubeconfig).await?)?)
}

/// The current context and the URL of the API server, such as `prod (https://10.0.0.1:6443)`; in a Pod only the URL.
/// `None` if no cluster is configured.
pub async fn cluster_name(kubeconfig: Option<&Path>) -> Option<String> {
    let server = config(kubeconfig).await.ok()?.cluster_url.to_string();
    let server = server.trim_end_matches('/');
    let written = kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from).ok();
    let context = written.and_then(|written| written.current_context);
    Some(context.map_or_else(|| server.to_owned(), |context| format!("{context} ({server})")))
}

async fn config(kubeconfig: Option<&Path>) -> Result<Config, ConnectError> {
    Ok(match kubeconfig {
        Some(file) => {
            let failed = |source| ConnectError::Kubeconfig { file: file.to_owned(), source };
            let written = Kubeconfig::read_from(file).map_err(failed)?;
            Config::from_custom_kubeconfig(written, &KubeConfigOptions::default()).await.map_err(failed)?
        }
        None => Config::infer().await.map_err(ConnectError::NoCluster)?,
    })
}
