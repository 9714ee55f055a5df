//! Reads the settings of a command, and prints what is wrong with them.

use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Error, anyhow, bail};
use clusterip_api::{Compilation, Kind, Reason};
use clusterip_cluster::api_error::{RequestFailure, failed};
use clusterip_cluster::live_settings::{
    LiveSettings, SettingsFile, WrittenSettings, check_settings, compiled_as_in_cluster, in_lines,
};
use clusterip_cluster::manifests;
use clusterip_cluster::permissions::Need;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_core::settings::Settings;
use ipnet::IpNet;
use kube::Error as KubeError;
use serde_json::{Value, json};

use super::terminal::{is_quiet, notice, warn};
use crate::text::joined;

pub const OF_CLUSTER: &str = "the pools of the cluster";
pub const OF_SNAPSHOT: &str = "the pools of the snapshot";

pub struct GivenSettings {
    pub name: String,
    pub content: SettingsFile,
}

impl GivenSettings {
    /// Reads a settings file, or standard input for `-`: the settings themselves, pool objects, or a policy of
    /// Kubewarden or a ConfigMap that contains the settings. Without a file, or if the ConfigMap has an empty key, the
    /// settings are `{}`.
    pub fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let defaults = || SettingsFile::Document(json!({}));
        let Some(file) = file else { return Ok(Self { name: name_of(None), content: defaults() }) };
        let source = manifests::read_file(file).context("settings")?;
        let content = SettingsFile::read(&source.text).map_err(|error| unusable(&source.name, error))?;
        let is_empty = content == SettingsFile::Document(Value::Null);
        Ok(Self { name: source.name, content: if is_empty { defaults() } else { content } })
    }

    pub fn document(&self, cluster: &ServiceRanges) -> anyhow::Result<WrittenSettings> {
        self.content.document(cluster).map_err(|error| unusable(&self.name, error))
    }

    /// The document without the pools whose ranges are those of ServiceCIDR objects.
    pub fn document_without_cluster(&self) -> anyhow::Result<WrittenSettings> {
        self.content.document_without_cluster().map_err(|error| unusable(&self.name, error))
    }
}

pub fn unusable(name: &str, mistakes: impl Display) -> Error {
    anyhow!("{}", in_lines(name, mistakes))
}

/// The settings of a snapshot's pool objects, with their name. Prints that they are used, and what is wrong.
pub fn of_snapshot(objects: &[Value]) -> Option<(WrittenSettings, String)> {
    compiled_as_in_cluster(objects).map(|compiled| announced(OF_SNAPSHOT, compiled))
}

/// As [`of_snapshot`], for the objects of a cluster; also `None` if they may not be read.
pub fn of_cluster(
    compiled: Result<Option<Compilation>, KubeError>,
) -> anyhow::Result<Option<(WrittenSettings, String)>> {
    match compiled {
        Ok(compiled) => Ok(compiled.map(|compiled| announced(OF_CLUSTER, compiled))),
        Err(error) => {
            let failed = failed(format!("{OF_CLUSTER} can't be read"), &error);
            if RequestFailure::from(&error).is_forbidden {
                warn(&failed.to_string());
                return Ok(None);
            }
            Err(failed)
        }
    }
}

fn announced(name: &str, compiled: Compilation) -> (WrittenSettings, String) {
    notice(&format!("settings: {name}"));
    for (key, state) in compiled.states.iter().filter(|(_, state)| state.reason != Reason::InUse) {
        warn(&format!("{key}: {}: {}", state.reason.as_str(), state.message));
    }
    (compiled.into(), name.to_owned())
}

/// Says that a command uses the pools of K2s: in the first line of a table, which is returned, or in a notice.
pub fn announce_default_pools(is_table: bool) -> String {
    let pools = Settings::default().pools;
    let pools = pools.iter().map(|pool| format!("{} {}", pool.name, joined(&pool.cidrs, ",")));
    let line = format!("settings: the pools of K2s (no --settings): {}", joined(pools, ", "));
    if is_table && !is_quiet() {
        return line + "\n";
    }
    notice(&line);
    String::new()
}

/// Checks that the default pools, those of K2s, may lie in the primary Service range of a cluster whose Service
/// `default/kubernetes` has this address: the address is the first one of the range. Only needed if the Service ranges
/// themselves are unknown.
pub fn check_default_pools(kubernetes: IpAddr) -> anyhow::Result<()> {
    /// The API server accepts no wider Service range.
    const WIDEST: u32 = 20;
    let IpAddr::V4(address) = kubernetes else { return Ok(()) };
    let begin = address.to_bits().saturating_sub(1);
    let length = u8::try_from(32 - begin.trailing_zeros().min(WIDEST)).unwrap_or(32);
    let Ok(range) = IpNet::new(IpAddr::V4(begin.into()), length) else { return Ok(()) };
    if Settings::default().pools.iter().flat_map(|pool| &pool.cidrs).all(|cidr| range.contains(cidr)) {
        return Ok(());
    }
    bail!(
        "settings: {}: the Service range of the cluster begins with {kubernetes}, the address of default/kubernetes: \
         these are the default pools, those of K2s, and they do not fit the cluster: `clusterip init` prints settings \
         that do",
        name_of(None)
    )
}

pub fn pool_needs() -> Vec<Need> {
    Kind::ALL.map(|kind| Need::list(&kind.api_resource())).to_vec()
}

/// Checks settings as `clusterip serve` does in a cluster with these Service ranges.
pub fn check(written: impl Into<WrittenSettings>, ranges: &ServiceRanges, name: &str) -> anyhow::Result<LiveSettings> {
    check_settings(written, ranges).map_err(|mistakes| unusable(name, mistakes))
}

pub fn name_of(file: Option<&Path>) -> String {
    file.map_or_else(|| "the default settings".to_owned(), |file| file.display().to_string())
}
