//! The pages of `docs` list every setting and every kind of evidence, with their defaults.

use std::collections::BTreeSet;

use clusterip_cluster::live_settings::document_of_objects;
use clusterip_cluster::snapshot::service_ranges::ServiceRanges;
use clusterip_cluster::yaml;
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use serde_json::{Value, json};

use crate::files::read;
use crate::known_settings::{NONSENSE, known, settings, table};

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
        let named: BTreeSet<String> = table(section).into_keys().collect();
        assert_eq!(named, settings(section).into_iter().collect(), "{section}");
    }
}

#[test]
fn documentation_of_settings_has_the_defaults() {
    struct Case {
        section: &'static str,
        pool: Value,
        names: [&'static str; 3],
    }
    let cases = [
        Case {
            section: "nodes",
            pool: json!({"name": "a", "cidrs": ["10.0.0.0/16", "fd00::/48"]}),
            names: ["pools[].blockSize", "pools[].exclude", "explicit"],
        },
        Case {
            section: "external",
            pool: json!({"name": "a", "cidrs": ["10.0.9.10-10.0.9.40"]}),
            names: ["pools[].exclude", "loadBalancerClass", "default"],
        },
    ];
    for Case { section, pool, names } in cases {
        let rows = table(section);
        let with = |name: &str, value: Value| {
            let mut document = json!({section: {"pools": [pool]}});
            match name.strip_prefix("pools[].") {
                Some(key) => document[section]["pools"][0][key] = value,
                None => document[section][name] = value,
            }
            Settings::from_value(&document).map_err(|invalid| invalid.to_string())
        };
        for name in names {
            let written = yaml::single(rows[name].0.trim_matches('`')).unwrap();
            assert_eq!(with(name, written), with(name, Value::Null), "{section}: {name}");
        }
        for key in known(json!({section: {"pools": [{"match": {NONSENSE: 1}}]}})) {
            assert!(rows["pools[].match"].1.contains(&format!("`{key}`")), "{section}: match.{key}");
        }
    }
    let (default, meaning) = &table("nodes")["explicit"];
    for value in known(json!({"nodes": {"explicit": NONSENSE}})) {
        assert!([default, meaning].iter().any(|text| text.contains(&format!("`{value}`"))), "explicit: {value}");
    }
}

#[test]
fn page_about_external_addresses_has_an_example_of_every_setting() {
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
