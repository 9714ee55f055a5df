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
    let config = match kubeconfig {
        Some(file) => {
            let failed = |source| ConnectError::Kubeconfig { file: file.to_owned(), source };
            let written = Kubeconfig::read_from(file).map_err(failed)?;
            Config::from_custom_kubeconfig(written, &KubeConfigOptions::default()).await.map_err(failed)?
        }
        None => Config::infer().await.map_err(ConnectError::NoCluster)?,
    };
    Ok(Client::try_from(config)?)
}
