//! Selects the Services of a command by namespace and labels, as kubectl does.

use anyhow::bail;
use clap::Args;
use clusterip_host::cluster::lookups::snapshot::Snapshot;
use clusterip_host::object;
use clusterip_runtime::connect::ClusterArguments;
use serde_json::Value;

use super::terminal_options::notice;
use crate::service_selector::ServiceSelector;

/// The arguments that select Services.
#[derive(Clone, Debug, Default, Args)]
pub struct Scope {
    /// Only Services in this namespace [default: the namespace of the context, or all namespaces]
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Services in all namespaces, even if the context has a namespace
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only Services with these labels, such as app=web,tier!=back or 'env in (test,prod)'
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub selector: Option<ServiceSelector>,
}

impl Scope {
    /// The only namespace of the command; `None` for all namespaces. If it is the namespace of the context, it is
    /// printed.
    pub fn namespace(&self, cluster: &ClusterArguments) -> Option<String> {
        if self.all_namespaces {
            return None;
        }
        if self.namespace.is_some() {
            return self.namespace.clone();
        }
        let namespace = cluster.namespace()?;
        notice(&format!("namespace: {namespace} (of the context; -A selects all namespaces)"));
        Some(namespace)
    }
}

/// The notice of a command whose `--selector` matches no Service.
pub const NO_SUCH_LABELS: &str = "no Service has these labels";

impl Scope {
    /// Prints a notice if no Service of the namespace, or of all, has the labels of `--selector`.
    pub fn tell_if_no_service_matches(&self, snapshot: &Snapshot, namespace: Option<&str>) {
        let Some(selector) = &self.selector else { return };
        let is_inside = |service: &Value| namespace.is_none_or(|namespace| object::namespace(service) == namespace);
        if !snapshot.all("v1", "Service").any(|service| is_inside(&service) && selector.matches(&service)) {
            notice(NO_SUCH_LABELS);
        }
    }
}

/// Checks that a namespace exists.
///
/// # Errors
/// If neither the Namespace nor a Service in it exists.
pub fn check(snapshot: &Snapshot, namespace: &str) -> anyhow::Result<()> {
    // A snapshot file may have no Namespaces.
    if snapshot.get("v1", "Namespace", "", namespace).is_none() && snapshot.services(Some(namespace)).is_empty() {
        bail!("there is no namespace {namespace}");
    }
    Ok(())
}
