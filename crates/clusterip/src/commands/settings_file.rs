//! Reads a settings file, and prints what is wrong with it.

use std::path::Path;

use anyhow::Context;
use clusterip_host::cluster::manifests;
use clusterip_host::cluster::watch::service_ranges::ServiceRanges;
use clusterip_host::live_settings::{LiveSettings, check_settings, settings_in};
use clusterip_host::policy::module::Module;
use serde_json::{Value, json};

use super::terminal_options::warn;

/// Reads a settings file, or standard input for `-`: the settings themselves, or a policy of Kubewarden or a ConfigMap
/// that contains them. Without a file, or if the ConfigMap has an empty key, the settings are `{}`.
///
/// # Errors
/// If the file can't be read, is empty, is not YAML, or is an object without settings.
pub fn read(file: Option<&Path>) -> anyhow::Result<Value> {
    let Some(file) = file else { return Ok(json!({})) };
    let source = manifests::read_file(file).context("settings")?;
    let document = settings_in(&source.text).map_err(|why| anyhow::anyhow!("settings: {}: {why}", source.name))?;
    Ok(if document.is_null() { json!({}) } else { document })
}

/// The settings in a cluster with these ranges, as `clusterip serve` checks them.
///
/// # Errors
/// If the settings have mistakes; the error names the file, and lists all mistakes, one per line.
pub fn check(
    module: &Module,
    written: Value,
    ranges: &ServiceRanges,
    file: Option<&Path>,
) -> anyhow::Result<LiveSettings> {
    check_settings(module, written, ranges)
        .map_err(|mistakes| anyhow::anyhow!("settings: {}\n{mistakes}", name_of(file)))
}

/// Prints the warnings about the settings of this file.
pub fn print_warnings(settings: &LiveSettings, file: Option<&Path>) {
    let file = name_of(file);
    for warning in &settings.warnings {
        warn(&format!("{file}: {warning}"));
    }
}

/// The name of the settings in messages.
pub fn name_of(file: Option<&Path>) -> String {
    file.map_or_else(|| "the default settings".to_owned(), |file| file.display().to_string())
}
