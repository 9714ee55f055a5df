//! Rancher's form, `questions-ui.yml`, has every setting that it can hold, with valid values and the defaults.

use std::collections::{BTreeMap, BTreeSet};

use clusterip_core::settings::Settings;
use serde_json::{Value, json};

use crate::files::read_yaml;
use crate::known_settings::{NONSENSE, known, settings, table};

/// The questions of Rancher's form, by the variable that each sets.
fn questions() -> BTreeMap<String, Value> {
    let form = read_yaml("questions-ui.yml");
    let mut questions = form["questions"].as_array().unwrap().clone();
    let below: Vec<Value> =
        questions.iter().filter_map(|question| question["subquestions"].as_array()).flatten().cloned().collect();
    questions.extend(below);
    let count = questions.len();
    let questions: BTreeMap<String, Value> = questions
        .into_iter()
        .map(|question| (question["variable"].as_str().expect("a question without a variable").to_owned(), question))
        .collect();
    assert_eq!(questions.len(), count, "two questions set the same variable");
    questions
}

/// Settings that the form can't hold; its text names them instead.
const NOT_IN_THE_FORM: [&str; 4] = ["pools", "evidence.kinds", "serviceCIDRs", "unusableServiceCIDRs"];

#[test]
fn form_has_every_setting_that_it_can_hold() {
    let mut questions = questions();
    let parent = questions.remove("services").expect("no question for services");
    let asked: BTreeSet<String> = questions.into_keys().collect();
    let kept_out = |setting: &String| NOT_IN_THE_FORM.iter().any(|name| setting.split("[]").next() == Some(name));
    let expected: BTreeSet<String> =
        settings("services").into_iter().filter(|s| !kept_out(s)).map(|s| format!("services.{s}")).collect();
    assert_eq!(asked, expected);
    let text = parent["description"].as_str().unwrap();
    for name in NOT_IN_THE_FORM.into_iter().chain(["nodes beside services"]) {
        assert!(text.contains(name), "the form does not mention {name}, which it leaves out");
    }
}

#[test]
fn form_offers_valid_values_and_the_defaults() {
    let table = table("services");
    for (variable, question) in questions() {
        let Some(name) = variable.strip_prefix("services.") else { continue };
        let document = |value: &Value| {
            let value = name.rsplit('.').fold(value.clone(), |value, key| json!({key: value}));
            json!({"services": value})
        };
        let default = &question["default"];
        let read = |value: &Value| Settings::from_value(&document(value)).map_err(|invalid| invalid.to_string());
        assert_eq!(read(default), Ok(Settings::default()), "{name}: default of the policy");
        // The default must have an effect: another value gives other settings.
        let other = match default {
            Value::Array(_) => json!(["other"]),
            Value::Bool(default) => json!(!default),
            _ if question["type"] == "enum" => {
                question["options"].as_array().unwrap().iter().rfind(|option| *option != default).unwrap().clone()
            }
            _ => json!("windows"),
        };
        assert_ne!(read(&other).unwrap(), Settings::default(), "{name}: {other} has an effect");
        if question["type"] == "enum" {
            let options = known(document(&json!(NONSENSE)));
            assert_eq!(set(&question["options"]), options.iter().map(String::as_str).collect(), "{name}: options");
        }
        let (written, meaning) = &table[name];
        let shown = match default {
            Value::Array(items) => {
                format!("[{}]", items.iter().map(|item| item.as_str().unwrap()).collect::<Vec<_>>().join(", "))
            }
            Value::Bool(default) => default.to_string(),
            // A default that depends on another setting is not written by the form.
            Value::Null => String::new(),
            value => value.as_str().unwrap().to_owned(),
        };
        if !shown.is_empty() {
            assert_eq!(*written, format!("`{shown}`"), "{name}: default in docs/settings.md");
        }
        for option in question["options"].as_array().into_iter().flatten().filter(|option| *option != default) {
            let option = option.as_str().unwrap();
            assert!(meaning.contains(&format!("`{option}`")), "{name}: docs/settings.md does not name {option}");
        }
    }
}

fn set(list: &Value) -> BTreeSet<&str> {
    list.as_array().unwrap().iter().map(|item| item.as_str().unwrap()).collect()
}
