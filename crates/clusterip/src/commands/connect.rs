//! Connects to a cluster.

use std::path::Path;

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A client for the cluster of a kubeconfig, or for the cluster that this process runs in.
///
/// # Errors
/// If the file can't be used, or no cluster is configured.
pub async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<Client> {
    let config = match kubeconfig {
        Some(file) => {
            let written = Kubeconfig::read_from(file).with_context(|| format!("kubeconfig {}", file.display()))?;
            Config::from_custom_kubeconfig(written, &KubeConfigOptions::default())
                .await
                .with_context(|| format!("kubeconfig {}", file.display()))?
        }
        None => Config::infer().await.context("no cluster: give --kubeconfig, or run it in a Pod")?,
    };
    Ok(Client::try_from(config)?)
}
