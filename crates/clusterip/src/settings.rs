//! Reads and completes settings for the native host.

use std::path::Path;

use anyhow::{Context, bail};
use clusterip_core::settings::Settings;
use serde_json::{Value, json};

use crate::cluster::service_ranges::ServiceRanges;
use crate::cluster::{manifests, yaml};
use crate::policy::module::Module;
use crate::report::style;
use crate::report::terminal::harmless;

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

/// Completes settings with what the native host knows, unless the settings say something else: look-ups by namespace,
/// which the host answers from indexes, the Service ranges of the cluster, and the ranges that are not usable.
pub fn complete(mut settings: Value, ranges: &ServiceRanges) -> Value {
    let Some(document) = settings.as_object_mut() else { return settings };
    let services = document.entry("services").or_insert(Value::Null);
    if services.is_null() {
        *services = json!({});
    }
    let Some(services) = services.as_object_mut() else { return settings };
    let is_empty = |value: &Value| match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        other => other.is_null(),
    };
    let learned = [("serviceCIDRs", json!(ranges.all)), ("unusableServiceCIDRs", ranges.unusable_document())];
    for (key, known) in learned {
        if !is_empty(&known) && services.get(key).is_none_or(is_empty) {
            services.insert(key.to_owned(), known);
        }
    }
    let evidence = services.entry("evidence").or_insert(Value::Null);
    if evidence.is_null() {
        *evidence = json!({});
    }
    if let Some(evidence) = evidence.as_object_mut() {
        evidence.entry("lookups").or_insert(json!("namespace"));
    }
    settings
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
