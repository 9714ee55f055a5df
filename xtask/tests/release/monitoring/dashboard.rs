//! The dashboard: its queries, its layout and its variables.

use std::collections::BTreeSet;

use crate::files::read_yaml;
use serde_json::Value;

use super::exposed_metrics::{OF_THE_TARGET, exposed};
use super::queries::faults;

/// The panels with a query, by title, each with its expression and its legend.
fn targets() -> Vec<(String, String, String)> {
    let dashboard = read_yaml("deploy/monitoring/clusterip.json");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut targets = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            // Grafana replaces this variable before it queries.
            let expression = text(&target["expr"]).replace("$__rate_interval", "5m");
            targets.push((text(&panel["title"]), expression, text(&target["legendFormat"])));
        }
    }
    targets
}

#[test]
fn dashboard_queries_only_exposed_metrics() {
    let found: Vec<String> = targets()
        .iter()
        .flat_map(|(title, expression, legend)| {
            faults(expression, &[legend], "{{").into_iter().map(move |fault| format!("{title}: {fault}"))
        })
        .collect();
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn dashboard_layout_and_variables_are_valid() {
    let dashboard = read_yaml("deploy/monitoring/clusterip.json");
    let exposed = exposed();
    let mut found = Vec::new();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        if !ids.insert(panel["id"].as_u64().unwrap()) {
            found.push(format!("{title}: duplicate id"));
        }
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        if x + w > 24 {
            found.push(format!("{title}: is cut off"));
        }
        let cells = (y..y + h).flat_map(|y| (x..x + w).map(move |x| (x, y)));
        if cells.filter(|&cell| !taken.insert(cell)).count() > 0 {
            found.push(format!("{title}: overlaps another panel"));
        }
        for source in panel["targets"].as_array().into_iter().flatten().chain([panel]) {
            if panel["type"] != "row" && source["datasource"]["uid"] != "${datasource}" {
                found.push(format!("{title}: has a fixed datasource"));
            }
        }
        if panel["type"] != "row" && panel["description"].as_str().is_none_or(str::is_empty) {
            found.push(format!("{title}: has no description"));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap().iter().filter(|v| v["type"] == "query") {
        let query = variable["query"]["query"].as_str().unwrap();
        let asked = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')?.split_once(", "));
        let there = asked.is_some_and(|(metric, label)| {
            exposed.get(metric).is_some_and(|about| about.labels.contains_key(label) || OF_THE_TARGET.contains(&label))
        });
        if !there {
            found.push(format!("{query} has no values"));
        }
    }
    assert_eq!(found, Vec::<String>::new());
}
