//! Runs helm in the cluster of a control plane.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use super::command::ended;
use super::control_plane::ControlPlane;
use crate::missing;

/// The helm that `CLUSTERIP_HELM` names.
pub struct Helm {
    program: String,
    kubeconfig: PathBuf,
    cache: PathBuf,
}

impl Helm {
    /// Returns `None`, and says that a test is skipped, if `CLUSTERIP_HELM` names no helm.
    pub fn of(plane: &ControlPlane) -> Option<Self> {
        let Ok(program) = env::var("CLUSTERIP_HELM") else {
            missing::skip("helm", "helm install and helm upgrade need the helm that CLUSTERIP_HELM names");
            return None;
        };
        Some(Self { program, kubeconfig: plane.kubeconfig().to_owned(), cache: plane.folder().join("helm") })
    }

    /// Runs helm with these arguments, which must succeed, and returns what it prints.
    pub async fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).env("HELM_CACHE_HOME", &self.cache);
        ended(command).await.ok()
    }
}
