//! Reads and checks a settings file.

use std::path::Path;

use anyhow::{Context, bail};
use clusterip_core::settings::Settings;
use clusterip_host::cluster::manifests;
use clusterip_host::policy::module::Module;
use clusterip_host::yaml;
use clusterip_runtime::style;
use clusterip_runtime::terminal::harmless;
use serde_json::{Value, json};

/// Reads a settings file. Without a file, or if it is empty, the settings are `{}`.
///
/// # Errors
/// If the file can't be read, or is not YAML.
pub fn read(file: Option<&Path>) -> anyhow::Result<Value> {
    let Some(file) = file else { return Ok(json!({})) };
    let source = manifests::read_file(file).context("settings")?;
    let document = yaml::single(&source.text).with_context(|| format!("settings: {}", source.name))?;
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
        bail!("settings: {file}\n{}", answer.message.unwrap_or_default());
    }
    let settings = Settings::from_value(settings).map_err(|invalid| anyhow::anyhow!("settings: {file}\n{invalid}"))?;
    let unusable = settings.unusable_warnings().into_iter().map(|warning| warning.to_string());
    for warning in answer.warnings.into_iter().chain(unusable) {
        let warning = harmless(&format!("{file}: {warning}"));
        anstream::eprintln!("{}warning:{} {warning}", style::WARNING.render(), anstyle::Reset.render());
    }
    Ok(settings)
}
