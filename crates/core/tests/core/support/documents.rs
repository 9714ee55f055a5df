//! Settings documents and their mistakes.

use super::{extended, settings};
use clusterip_core::settings::Settings;
use clusterip_core::{SettingsResponse, validate_settings};
use serde_json::{Value, json};

/// Checks all mistakes of the document that `build` makes of each value. They have one line each, without `path`, where
/// all of them begin; the text is empty if the document is valid.
#[track_caller]
pub fn check_mistakes(path: &str, build: impl Fn(Value) -> Value, rows: &[(Value, &str)]) {
    for (value, expected) in rows {
        let (message, mistakes) = match Settings::from_value(&build(value.clone())) {
            Ok(_) => (String::new(), Vec::new()),
            Err(invalid) => (invalid.to_string(), invalid.mistakes.iter().map(ToString::to_string).collect()),
        };
        let expected: Vec<String> = expected.lines().map(|mistake| format!("{path}{mistake}")).collect();
        assert_eq!(mistakes, expected, "{value}");
        assert_eq!(message, mistakes.join("\n"), "{value}: the message is the list");
    }
}

/// The document itself.
pub fn document(document: Value) -> Value {
    document
}

/// Settings with these `services`.
pub fn services(services: Value) -> Value {
    json!({ "services": services })
}

/// Settings with these pools.
pub fn pools(pools: Value) -> Value {
    services(json!({ "pools": pools }))
}

/// Settings with a valid pool `a` of 10.0.0.0/24 that also has these fields.
pub fn pool(fields: Value) -> Value {
    pools(json!([extended(json!({"name": "a", "cidrs": ["10.0.0.0/24"]}), &fields)]))
}

/// Settings with these `nodes`.
pub fn nodes(nodes: Value) -> Value {
    json!({ "nodes": nodes })
}

/// Settings with these pools of Nodes.
pub fn node_pools(pools: Value) -> Value {
    nodes(json!({ "pools": pools }))
}

/// Settings with a valid pool `a` of Nodes, 10.0.0.0/16, that also has these fields.
pub fn node_pool(fields: Value) -> Value {
    node_pools(json!([extended(json!({"name": "a", "cidrs": ["10.0.0.0/16"]}), &fields)]))
}

/// Settings with these pools of external addresses.
pub fn external_pools(pools: Value) -> Value {
    json!({"external": {"pools": pools}})
}

/// Settings with a valid pool `a` of external addresses, 10.0.9.0/24, that also has these fields.
pub fn external_pool(fields: Value) -> Value {
    external_pools(json!([extended(json!({"name": "a", "cidrs": ["10.0.9.0/24"]}), &fields)]))
}

/// The warnings about valid settings, which the answer to them has too.
#[track_caller]
pub fn warnings_of(document: &Value) -> Vec<String> {
    let warnings: Vec<String> = settings(document).warnings().iter().map(ToString::to_string).collect();
    let answer = validate_settings(document.to_string().as_bytes());
    assert_eq!(answer, SettingsResponse { valid: true, message: None, warnings: warnings.clone() }, "{document}");
    warnings
}
