//! The settings that the policy knows, and the table of docs/settings.md.

use std::collections::BTreeMap;

use clusterip_core::settings::Settings;
use serde_json::{Value, json};

use crate::files::read;

/// The names that the policy itself lists when it finds an unknown one.
pub fn known(settings: Value) -> Vec<String> {
    let invalid = Settings::from_value(&settings).unwrap_err().to_string();
    let (_, list) = invalid.split_once("known are ").unwrap_or_else(|| panic!("{invalid}"));
    list.lines().next().unwrap().split(", ").map(str::to_owned).collect()
}

pub const NONSENSE: &str = "xxxxxxxxxxxxxxxxxxxxxxxx";

/// The settings below `services`, `nodes` or `external`, as the tables of docs/settings.md name them.
pub fn settings(section: &str) -> Vec<String> {
    let mut settings = Vec::new();
    for key in known(json!({ section: {NONSENSE: 1} })) {
        match key.as_str() {
            "pools" => {
                let keys = known(json!({ section: {"pools": [{NONSENSE: 1}]} }));
                settings.extend(keys.iter().map(|key| format!("pools[].{key}")));
            }
            "evidence" => {
                let keys = known(json!({ section: {"evidence": {NONSENSE: 1}} }));
                settings.extend(keys.iter().map(|key| format!("evidence.{key}")));
            }
            _ => settings.push(key),
        }
    }
    settings
}

/// The rows of a table of docs/settings.md by name: the default in words, and the meaning.
pub fn table(section: &str) -> BTreeMap<String, (String, String)> {
    let page = read("docs/settings.md");
    let (_, table) = page.split_once(&format!("| `{section}.` | default | |\n")).expect("no table of settings");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').splitn(3, '|').map(|cell| cell.trim().to_owned());
        let name = cells.next().unwrap().trim_matches('`').to_owned();
        (name, (cells.next().unwrap(), cells.next().unwrap()))
    })
    .collect()
}
