//! Completes settings with what the host knows.

use serde_json::{Value, json};

use crate::watch::service_ranges::ServiceRanges;

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
