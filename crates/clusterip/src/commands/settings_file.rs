//! Reads and checks a settings file.

use std::path::Path;

use anyhow::{Context, bail};
use clusterip_core::settings::Settings;
use clusterip_host::cluster::manifests;
use clusterip_host::live_settings::{settings_in, why_default_pools_do_not_fit};
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

/// Lets the policy check the settings, and prints its warnings.
///
/// # Errors
/// If the settings have mistakes; the error lists all of them, one per line.
pub fn check(module: &Module, settings: &Value, file: Option<&Path>) -> anyhow::Result<Settings> {
    let file = file.map_or_else(|| "the default settings".to_owned(), |file| file.display().to_string());
    let answer = module.validate_settings(settings)?;
    if !answer.valid {
        let misfit = why_default_pools_do_not_fit(settings).map(|reason| format!("\n{reason}")).unwrap_or_default();
        bail!("settings: {file}\n{}{misfit}", answer.message.unwrap_or_default());
    }
    let settings = Settings::from_value(settings).map_err(|invalid| anyhow::anyhow!("settings: {file}\n{invalid}"))?;
    let unusable = settings.unusable_warnings().into_iter().map(|warning| warning.to_string());
    for warning in answer.warnings.into_iter().chain(unusable) {
        warn(&format!("{file}: {warning}"));
    }
    Ok(settings)
}
