//! Where a server keeps what it needs, as those find it who work beside it.

use std::path::Path;

use anyhow::bail;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::cluster::failure::words;
use crate::controller::leader::LEASE;
use crate::live_settings::Source;

/// The ConfigMap that the deployment keeps its settings in.
const SETTINGS: &str = "clusterip-settings";

/// The namespace where a server keeps its Lease; where there is none, that of the context. `given` is what
/// the user says.
///
/// # Errors
/// Where there are several, or the API server does not tell.
pub async fn server_namespace(client: &Client, given: Option<&str>) -> anyhow::Result<String> {
    if let Some(namespace) = given {
        return Ok(namespace.to_owned());
    }
    let only = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let leases = match Api::<Lease>::all(client.clone()).list_metadata(&only).await {
        Ok(leases) => leases.items,
        // Whoever may not look everywhere knows where to look.
        Err(kube::Error::Api(status)) if status.code == 403 => Vec::new(),
        Err(error) => bail!("leases can't be listed: {}", words(&error)),
    };
    let mut namespaces: Vec<String> = leases.into_iter().filter_map(|lease| lease.metadata.namespace).collect();
    namespaces.sort();
    match namespaces.as_slice() {
        [] => Ok(client.default_namespace().to_owned()),
        [namespace] => Ok(namespace.clone()),
        several => bail!(
            "the lease {LEASE} is in several namespaces: {}; say with --server-namespace which is meant",
            several.join(", ")
        ),
    }
}

/// The settings: a file, or those of the ConfigMap beside a server, or the defaults.
///
/// # Errors
/// Where it can't be found out whether there is such a ConfigMap.
pub async fn settings(client: &Client, namespace: &str, file: Option<&Path>) -> anyhow::Result<Source> {
    if let Some(file) = file {
        return Ok(Source::File(file.to_owned()));
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = config_maps.get_opt(SETTINGS).await;
    let found = found.map_err(|error| {
        anyhow::anyhow!("configmap {namespace}/{SETTINGS} can't be read: {}; give --settings", words(&error))
    })?;
    let (client, namespace, name) = (client.clone(), namespace.to_owned(), SETTINGS.to_owned());
    Ok(found.map_or(Source::Defaults, |_| Source::ConfigMap { client, namespace, name }))
}
