//! The alerts: their queries, their tests and their documentation.

use std::collections::BTreeSet;

use crate::files::{read, read_yaml};
use serde_json::Value;

use super::queries::faults;

/// The rules by name, each with its expression and its texts.
fn rules() -> Vec<(String, String, Vec<String>)> {
    let rules = read_yaml("deploy/monitoring/prometheus-rule.yaml");
    let groups = rules["spec"]["groups"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules
        .map(|rule| {
            let texts = rule["annotations"].as_object().unwrap().values().map(text).collect();
            (text(&rule["alert"]), text(&rule["expr"]), texts)
        })
        .collect()
}

#[test]
fn rules_query_only_exposed_metrics() {
    let mut found = Vec::new();
    for (name, expression, texts) in rules() {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        found.extend(faults(&expression, &texts, "$labels.").into_iter().map(|fault| format!("{name}: {fault}")));
    }
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn every_rule_has_a_test_in_which_it_fires() {
    let tests = read_yaml("deploy/monitoring/rules-test.yaml");
    let of = |test: &Value| {
        let asked = test["promql_expr_test"].as_array().unwrap().iter();
        let fires = asked.filter(|asked| asked["exp_samples"] != serde_json::json!([])).count();
        (test["name"].as_str().unwrap().to_owned(), fires)
    };
    let tests: Vec<_> = tests["tests"].as_array().unwrap().iter().map(of).collect();
    let well = [("all is well".to_owned(), 0)].into_iter();
    let expected: Vec<_> = well.chain(rules().into_iter().map(|(name, ..)| (name, 1))).collect();
    assert_eq!(tests, expected);
}

#[test]
fn documentation_lists_the_alerts() {
    let page = read("docs/metrics.md");
    let listed: BTreeSet<&str> = page.split('`').filter(|word| word.starts_with("Clusterip")).collect();
    let rules = rules();
    assert_eq!(listed, rules.iter().map(|(name, ..)| name.as_str()).collect());
}
