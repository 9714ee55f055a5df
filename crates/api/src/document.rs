//! The parts of the settings document that come from objects.

use clusterip_core::settings::Settings;
use serde_json::{Map, Value, json};

use crate::object_key::ObjectKey;

/// The fields of pool objects that the document does not have.
const ONLY_IN_OBJECTS: [&str; 3] = ["priority", "serviceCIDRSelector", "fence"];
/// The fields of a ClusterIPPolicy with one of several names as their value. Objects have these names in upper camel
/// case, as all of Kubernetes does, and the document has them in lower camel case.
pub(crate) const ENUM_FIELDS: [&str; 4] = ["order", "explicit", "whenFull", "unmatched"];

/// The entry of a pool object in the document: its spec, with the name and with the given ranges in place of
/// `serviceCIDRSelector`.
pub(crate) fn entry(key: &ObjectKey, object: &Value, cidrs: Option<Vec<String>>) -> Value {
    let mut entry = Map::new();
    entry.insert("name".to_owned(), json!(key.name));
    if let Some(spec) = object.get("spec").and_then(Value::as_object) {
        let fields =
            spec.iter().filter(|(field, value)| !ONLY_IN_OBJECTS.contains(&field.as_str()) && !value.is_null());
        entry.extend(fields.map(|(field, value)| (field.clone(), value.clone())));
    }
    if let Some(cidrs) = cidrs {
        entry.insert("cidrs".to_owned(), json!(cidrs));
    }
    Value::Object(entry)
}

/// The document of a ClusterIPPolicy's spec and of the entries of pools. Each list is in the order in which its pools
/// are tried. `external` and `nodes` are absent if they have no pools.
pub(crate) fn document(
    policy: Option<&Value>,
    service_pools: Vec<Value>,
    external_pools: Vec<Value>,
    node_pools: Vec<Value>,
) -> Value {
    let mut services = policy.and_then(Value::as_object).cloned().unwrap_or_default();
    services.retain(|_, value| !value.is_null());
    let mut section = |name: &str| match services.remove(name) {
        Some(Value::Object(fields)) => fields,
        // The core reports that this is not an object.
        Some(other) => Map::from_iter([(name.to_owned(), other)]),
        None => Map::new(),
    };
    let (mut nodes, mut external) = (section("nodes"), section("external"));
    for fields in [&mut services, &mut nodes] {
        for name in ENUM_FIELDS {
            if let Some(Value::String(value)) = fields.get_mut(name) {
                *value = lower_camel(value);
            }
        }
    }
    services.insert("pools".to_owned(), Value::Array(service_pools));
    let mut document = Map::from_iter([("services".to_owned(), Value::Object(services))]);
    if !node_pools.is_empty() {
        nodes.insert("pools".to_owned(), Value::Array(node_pools));
        document.insert("nodes".to_owned(), Value::Object(nodes));
    }
    if !external_pools.is_empty() {
        external.insert("pools".to_owned(), Value::Array(external_pools));
        document.insert("external".to_owned(), Value::Object(external));
    }
    Value::Object(document)
}

/// The mistakes of a ClusterIPPolicy's spec, with paths below `spec`.
pub(crate) fn policy_mistakes(spec: &Value) -> Vec<String> {
    // The document has `nodes` and `external` only with pools, so these are documentation ranges that meet no other.
    let pool = |cidr: &str| vec![json!({"name": "any", "cidrs": [cidr]})];
    let document = document(Some(spec), Vec::new(), pool("203.0.113.0/24"), pool("198.51.100.0/24"));
    let Err(invalid) = Settings::from_value(&document) else { return Vec::new() };
    let mistakes = invalid.mistakes.into_iter();
    mistakes
        .map(|mistake| {
            let path = mistake.path.strip_prefix("services.").unwrap_or(&mistake.path);
            format!("spec.{path}: {}", mistake.reason)
        })
        .collect()
}

/// `Deny` as `deny`.
fn lower_camel(name: &str) -> String {
    let mut characters = name.chars();
    characters.next().map(|first| first.to_lowercase().chain(characters).collect()).unwrap_or_default()
}
