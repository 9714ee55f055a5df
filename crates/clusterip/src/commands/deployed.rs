//! Finds the namespace and the settings of a running server.

use std::path::Path;

use anyhow::bail;
use clusterip_host::live_settings::Source;
use clusterip_leases::leader::LEASE;
use clusterip_runtime::api_error::error_message;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, Client};

/// The ConfigMap with the settings in our deployments.
const SETTINGS: &str = "clusterip-settings";

/// The namespace of the server's Lease, or that of the context if there is no Lease. `given` is the namespace that
/// the user gave.
///
/// # Errors
/// If there are several Leases, or they can't be listed.
pub async fn server_namespace(client: &Client, given: Option<&str>) -> anyhow::Result<String> {
    if let Some(namespace) = given {
        return Ok(namespace.to_owned());
    }
    let only = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let leases = match Api::<Lease>::all(client.clone()).list_metadata(&only).await {
        Ok(leases) => leases.items,
        // A user who may not list all namespaces names one or uses that of the context.
        Err(kube::Error::Api(status)) if status.code == 403 => Vec::new(),
        Err(error) => bail!("leases can't be listed: {}", error_message(&error)),
    };
    let mut namespaces: Vec<String> = leases.into_iter().filter_map(|lease| lease.metadata.namespace).collect();
    namespaces.sort();
    match namespaces.as_slice() {
        [] => Ok(client.default_namespace().to_owned()),
        [namespace] => Ok(namespace.clone()),
        several => bail!(
            "the lease {LEASE} is in several namespaces: {}; name one of them with --server-namespace",
            several.join(", ")
        ),
    }
}

/// The settings of a file, of the ConfigMap beside a server, or the defaults.
///
/// # Errors
/// If the ConfigMap can't be read.
pub async fn settings(client: &Client, namespace: &str, file: Option<&Path>) -> anyhow::Result<Source> {
    if let Some(file) = file {
        return Ok(Source::File(file.to_owned()));
    }
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = config_maps.get_opt(SETTINGS).await;
    let found = found.map_err(|error| {
        anyhow::anyhow!("configmap {namespace}/{SETTINGS} can't be read: {}; give --settings", error_message(&error))
    })?;
    let (client, namespace, name) = (client.clone(), namespace.to_owned(), SETTINGS.to_owned());
    Ok(found.map_or(Source::Defaults, |_| Source::ConfigMap { client, namespace, name }))
}
