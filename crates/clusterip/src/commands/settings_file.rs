//! Reads a settings file, and prints what is wrong with it.

use std::path::Path;

use anyhow::Context;
use clusterip_api::Reason;
use clusterip_host::cluster::manifests;
use clusterip_host::cluster::watch::service_ranges::ServiceRanges;
use clusterip_host::live_settings::{DocumentError, LiveSettings, check_settings, compiled_as_in_cluster, settings_in};
use clusterip_host::policy::module::Module;
use serde_json::{Value, json};

use super::terminal_options::{notice, warn};

/// The name of settings that come from the objects of a snapshot, in messages.
pub const OF_SNAPSHOT: &str = "the pools of the snapshot";

/// Reads a settings file, or standard input for `-`: the settings themselves, pool objects, or a policy of Kubewarden
/// or a ConfigMap that contains the settings. Without a file, or if the ConfigMap has an empty key, the settings are
/// `{}`.
///
/// # Errors
/// If the file can't be read, is empty, is not YAML, or has objects without settings or with mistakes.
pub fn read(file: Option<&Path>) -> anyhow::Result<Value> {
    let Some(file) = file else { return Ok(json!({})) };
    let source = manifests::read_file(file).context("settings")?;
    let document = settings_in(&source.text).map_err(|error| unusable(&source.name, &error))?;
    Ok(if document.is_null() { json!({}) } else { document })
}

/// The error of a command whose settings can't be read. `name` is the name of the settings.
pub fn unusable(name: &str, error: &DocumentError) -> anyhow::Error {
    match error {
        // Several mistakes, one per line.
        DocumentError::Objects(_) => anyhow::anyhow!("settings: {name}\n{error}"),
        _ => anyhow::anyhow!("settings: {name}: {error}"),
    }
}

/// The settings that the objects of a snapshot stand for, as a server uses them; `None` if the snapshot has no
/// settings. Prints that they are used, and a warning for each object that can't be used.
pub fn of_snapshot(objects: &[Value]) -> Option<Value> {
    let compiled = compiled_as_in_cluster(objects)?;
    notice(&format!("settings: {OF_SNAPSHOT}"));
    for (key, state) in compiled.states.iter().filter(|(_, state)| state.reason != Reason::InUse) {
        warn(&format!("{key}: {}: {}", state.reason.as_str(), state.message));
    }
    Some(compiled.document)
}

/// Checks settings as `clusterip serve` does in a cluster with these Service ranges. `name` is the name of the settings
/// in the error.
///
/// # Errors
/// If the settings have mistakes; the error names the settings, and lists all mistakes, one per line.
pub fn check(module: &Module, written: Value, ranges: &ServiceRanges, name: &str) -> anyhow::Result<LiveSettings> {
    check_settings(module, written, ranges).map_err(|mistakes| anyhow::anyhow!("settings: {name}\n{mistakes}"))
}

/// Prints the warnings about settings, each with their name.
pub fn print_warnings(settings: &LiveSettings, name: &str) {
    for warning in &settings.warnings {
        warn(&format!("{name}: {warning}"));
    }
}

/// The name of the settings of a file in messages; without a file, that of the default settings.
pub fn name_of(file: Option<&Path>) -> String {
    file.map_or_else(|| "the default settings".to_owned(), |file| file.display().to_string())
}
