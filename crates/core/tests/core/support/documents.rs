//! Settings documents and their mistakes.

use clusterip_core::settings::Settings;
use serde_json::{Value, json};

/// A settings document with all of its mistakes.
pub struct SettingsCase<'a> {
    pub name: &'a str,
    pub document: Value,
    pub mistakes: &'a [&'a str],
}

/// The message must have one mistake on each line.
#[track_caller]
pub fn check_mistakes(cases: &[SettingsCase<'_>]) {
    for SettingsCase { name, document, mistakes: expected } in cases {
        let (message, mistakes) = match Settings::from_value(document) {
            Ok(_) => (String::new(), Vec::new()),
            Err(invalid) => (invalid.to_string(), invalid.mistakes.iter().map(ToString::to_string).collect()),
        };
        assert_eq!(mistakes, *expected, "{name}");
        assert_eq!(message, mistakes.join("\n"), "{name}: the message is the list");
    }
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
    let mut pool = json!({"name": "a", "cidrs": ["10.0.0.0/24"]});
    for (key, value) in fields.as_object().unwrap() {
        pool[key] = value.clone();
    }
    pools(json!([pool]))
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
    let mut pool = json!({"name": "a", "cidrs": ["10.0.0.0/16"]});
    for (key, value) in fields.as_object().unwrap() {
        pool[key] = value.clone();
    }
    node_pools(json!([pool]))
}

/// Settings with these pools of external addresses.
pub fn external_pools(pools: Value) -> Value {
    json!({"external": {"pools": pools}})
}

/// Settings with a valid pool `a` of external addresses, 10.0.9.0/24, that also has these fields.
pub fn external_pool(fields: Value) -> Value {
    let mut pool = json!({"name": "a", "cidrs": ["10.0.9.0/24"]});
    for (key, value) in fields.as_object().unwrap() {
        pool[key] = value.clone();
    }
    external_pools(json!([pool]))
}
