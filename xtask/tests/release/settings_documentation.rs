//! The pages of `docs` list every setting and every kind of evidence, with their defaults.

use std::collections::{BTreeMap, BTreeSet};

use clusterip_cluster::live_settings::document_of_objects;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::yaml;
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use serde_json::{Value, json};

use crate::known_settings::{NONSENSE, known, settings, table};
use crate::support::read;

#[test]
fn documentation_of_decisions_lists_the_kinds_of_evidence_in_their_order() {
    let kinds: Vec<&str> = WorkloadKind::known_names().collect();
    let (last, first) = kinds.split_last().unwrap();
    let words: Vec<String> = read("docs/decision.md").split_whitespace().map(str::to_owned).collect();
    let list = format!("{}, then {last}s.", first.join(", "));
    assert!(words.join(" ").contains(&list), "{list}");
}

#[test]
fn documentation_of_settings_lists_every_setting() {
    for section in ["services", "nodes", "external"] {
        let named: BTreeSet<String> = table(section).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(named, settings(section).into_iter().collect(), "{section}");
    }
}

#[test]
fn documentation_of_settings_has_the_defaults_of_nodes() {
    let rows: BTreeMap<String, (String, String)> =
        table("nodes").into_iter().map(|(name, default, meaning)| (name, (default, meaning))).collect();
    let with = |key: &str, value: Value| {
        let mut document = json!({"nodes": {"pools": [{"name": "a", "cidrs": ["10.0.0.0/16", "fd00::/48"]}]}});
        let place = if key == "explicit" { "/nodes" } else { "/nodes/pools/0" };
        document.pointer_mut(place).unwrap()[key] = value;
        Settings::from_value(&document).map_err(|invalid| invalid.to_string())
    };
    for key in ["blockSize", "exclude", "explicit"] {
        let name = if key == "explicit" { key.to_owned() } else { format!("pools[].{key}") };
        let written = yaml::single(rows[&name].0.trim_matches('`')).unwrap();
        assert_eq!(with(key, written), with(key, Value::Null), "{name}");
    }
    for key in known(json!({"nodes": {"pools": [{"match": {NONSENSE: 1}}]}})) {
        assert!(rows["pools[].match"].1.contains(&format!("`{key}`")), "match.{key}");
    }
    for value in known(json!({"nodes": {"explicit": NONSENSE}})) {
        let (default, meaning) = &rows["explicit"];
        assert!([default, meaning].iter().any(|text| text.contains(&format!("`{value}`"))), "explicit: {value}");
    }
}

#[test]
fn documentation_of_settings_has_the_defaults_of_external_addresses() {
    let rows: BTreeMap<String, (String, String)> =
        table("external").into_iter().map(|(name, default, meaning)| (name, (default, meaning))).collect();
    let with = |key: &str, value: Option<Value>| {
        let mut document = json!({"external": {"pools": [{"name": "a", "cidrs": ["10.0.9.10-10.0.9.40"]}]}});
        let (place, key) = match key.strip_prefix("pools[].") {
            Some(key) => ("/external/pools/0", key),
            None => ("/external", key),
        };
        if let Some(value) = value {
            document.pointer_mut(place).unwrap()[key] = value;
        }
        Settings::from_value(&document).map_err(|invalid| invalid.to_string())
    };
    for key in ["pools[].exclude", "loadBalancerClass", "default"] {
        let written = yaml::single(rows[key].0.trim_matches('`')).unwrap();
        assert_eq!(with(key, Some(written)), with(key, None), "{key}");
    }
    for key in known(json!({"external": {"pools": [{"match": {NONSENSE: 1}}]}})) {
        assert!(rows["pools[].match"].1.contains(&format!("`{key}`")), "match.{key}");
    }
    // The page about external addresses has an example of every setting, as objects.
    let page = read("docs/external.md");
    let example =
        page.split("```yaml\n").find(|block| block.contains("loadBalancerClass: clusterip-policy/external  "));
    let example = yaml::documents(example.unwrap().split("```").next().unwrap());
    let objects: Vec<Value> = example.map(|object| object.unwrap().to_value()).collect();
    let example = document_of_objects(&objects, &[], &ServiceRanges::default()).unwrap().document;
    Settings::from_value(&example).unwrap();
    for setting in settings("external") {
        let shown = match setting.strip_prefix("pools[].") {
            Some(key) => example["external"]["pools"][0].get(key),
            None => example["external"].get(&setting),
        };
        assert!(shown.is_some() || setting == "pools", "docs/external.md: no {setting}");
    }
}
