//! Reads and checks a settings file.

use std::path::Path;

use anyhow::{Context, bail};
use clusterip_api::Reason;
use clusterip_core::settings::Settings;
use clusterip_host::cluster::manifests;
use clusterip_host::live_settings::{DocumentError, compiled_as_in_cluster, settings_in, why_default_pools_do_not_fit};
use clusterip_host::policy::module::Module;
use serde_json::{Value, json};

use super::terminal_options::{notice, warn};

/// The name of settings that come from the objects of a snapshot, in messages.
pub const OF_SNAPSHOT: &str = "the pools of the snapshot";

/// The name of settings in messages: the file, or that they are the default settings.
pub fn name(file: Option<&Path>) -> String {
    file.map_or_else(|| "the default settings".to_owned(), |file| file.display().to_string())
}

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
    for (key, verdict) in compiled.verdicts.iter().filter(|(_, verdict)| verdict.reason != Reason::InUse) {
        warn(&format!("{key}: {}: {}", verdict.reason.as_str(), verdict.message));
    }
    Some(compiled.document)
}

/// Lets the policy check the settings with this name, and prints its warnings.
///
/// # Errors
/// If the settings have mistakes; the error lists all of them, one per line.
pub fn check(module: &Module, settings: &Value, name: &str) -> anyhow::Result<Settings> {
    let answer = module.validate_settings(settings)?;
    if !answer.valid {
        let misfit = why_default_pools_do_not_fit(settings).map(|reason| format!("\n{reason}")).unwrap_or_default();
        bail!("settings: {name}\n{}{misfit}", answer.message.unwrap_or_default());
    }
    let settings = Settings::from_value(settings).map_err(|invalid| anyhow::anyhow!("settings: {name}\n{invalid}"))?;
    let unusable = settings.unusable_warnings().into_iter().map(|warning| warning.to_string());
    for warning in answer.warnings.into_iter().chain(unusable) {
        warn(&format!("{name}: {warning}"));
    }
    Ok(settings)
}
