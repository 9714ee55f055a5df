//! The cluster of a plan, and the settings that the plan uses.

use std::borrow::Cow;
use std::path::Path;

use clusterip_cluster::live_settings::{LiveSettings, WrittenSettings, compile_cluster, complete};
use clusterip_cluster::lookups::api_server_lists;
use clusterip_cluster::manifests::Manifest;
use clusterip_cluster::watch::kinds;
use clusterip_cluster::watch::service_ranges::ServiceRanges;
use clusterip_core::settings::Settings;
use kube::Client;
use serde_json::Value;

use super::Plan;
use crate::commands::missing_permissions::Reads;
use crate::commands::read_snapshot;
use crate::commands::settings_file::{self, GivenSettings};

/// What a plan knows of the cluster.
#[derive(Default)]
pub(super) struct Cluster {
    /// The objects of the cluster; none if it is not known.
    pub(super) objects: Vec<Value>,
    /// The settings document of its pool objects, and the name of these settings; `None` if there are none, or if the
    /// user has given other settings.
    pub(super) settings: Option<(WrittenSettings, &'static str)>,
}

impl Plan {
    /// Reads the cluster. `given` are the settings of the user if `are_settings_given`, and otherwise those of K2s.
    pub(super) fn cluster(&self, given: &GivenSettings, are_settings_given: bool) -> anyhow::Result<Cluster> {
        match &self.snapshot {
            Some(file) => of_snapshot(file, are_settings_given),
            None if self.uses_cluster() => self.of_api_server(given, are_settings_given),
            None => Ok(Cluster::default()),
        }
    }

    fn of_api_server(&self, given: &GivenSettings, are_settings_given: bool) -> anyhow::Result<Cluster> {
        let check = |document: WrittenSettings, name: &str| {
            settings_file::check(document, &ServiceRanges::default(), name).map(|live| live.settings)
        };
        // Mistakes are reported before the cluster is read.
        let mut kinds_of = check(given.document_without_cluster()?, &given.name)?;
        let (runtime, client) = api_server_lists::connect(&self.connection)?;
        let mut settings = None;
        if !are_settings_given {
            let document = settings_file::of_cluster(runtime.block_on(compile_cluster(&client)))?;
            settings = document.map(|document| (document, settings_file::OF_CLUSTER));
        }
        if let Some((document, name)) = &settings {
            kinds_of = check(document.clone(), name)?;
        }
        let objects = runtime.block_on(objects(&client, &kinds_of, are_settings_given))?;
        Ok(Cluster { objects, settings })
    }
}

/// The objects of a cluster.
async fn objects(client: &Client, settings: &Settings, are_settings_given: bool) -> anyhow::Result<Vec<Value>> {
    let more = if are_settings_given { Vec::new() } else { settings_file::pool_needs() };
    let reads = Reads { kinds: kinds::asked(settings).collect(), more };
    let objects = api_server_lists::objects(client, settings).await;
    reads.explain(client, objects.map_err(Into::into)).await
}

fn of_snapshot(file: &Path, are_settings_given: bool) -> anyhow::Result<Cluster> {
    let objects = read_snapshot(file)?;
    if are_settings_given {
        return Ok(Cluster { objects, settings: None });
    }
    let settings = settings_file::of_snapshot(&objects).map(|document| (document, settings_file::OF_SNAPSHOT));
    Ok(Cluster { objects, settings })
}

/// Checks the settings against the cluster and the manifests, and prints the warnings. `of_cluster` are the settings of
/// the cluster, which are used instead of the given ones.
///
/// # Errors
/// If the settings have mistakes.
pub(super) fn check(
    given: &GivenSettings,
    of_cluster: Option<(WrittenSettings, &str)>,
    there: &[Value],
    manifests: &[Manifest],
) -> anyhow::Result<LiveSettings> {
    let known = there.iter().map(Cow::Borrowed);
    let of_manifests = manifests.iter().filter(|manifest| manifest.kind == "ServiceCIDR");
    let of_manifests = of_manifests.map(|manifest| Cow::Owned(manifest.object.value()));
    let ranges = ServiceRanges::of(known.chain(of_manifests));
    let is_cluster_known = !ServiceRanges::of(there).all.is_empty();
    let (written, name) = match of_cluster {
        Some((document, name)) => (document, name),
        None if is_cluster_known => (given.document(&ranges)?, given.name.as_str()),
        None => (given.document(&ranges.only_labels())?, given.name.as_str()),
    };
    let own_ranges = written.document.pointer("/services/serviceCIDRs").and_then(Value::as_array);
    let live = if is_cluster_known || own_ranges.is_none_or(Vec::is_empty) {
        settings_file::check(written, &ranges, name)?
    } else {
        // The manifests may contain only some of the cluster's ServiceCIDRs, so they can't contradict the settings.
        let written = WrittenSettings { document: complete(written.document, &ranges), ..written };
        settings_file::check(written, &ServiceRanges::default(), name)?
    };
    settings_file::print_warnings(&live, name);
    Ok(live)
}
