//! The metrics that `clusterip serve` exposes, according to docs/metrics.md.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::read;

/// The labels that Prometheus adds to the metrics of each target.
pub const OF_THE_TARGET: [&str; 1] = ["instance"];

/// An exposed metric: its labels, each with its possible values if the program defines them and not the cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Exposed {
    pub kind: String,
    pub labels: BTreeMap<String, BTreeSet<String>>,
}

/// The series that Prometheus stores; a histogram consists of three.
pub fn exposed() -> BTreeMap<String, Exposed> {
    let page = read("docs/metrics.md");
    let rows = page.lines().skip_while(|line| !line.starts_with("| `")).take_while(|line| line.starts_with('|'));
    let mut all = BTreeMap::new();
    for row in rows {
        let [_, name, kind, labels, ..] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}");
        };
        let name = name.trim_matches('`');
        let mut metric = Exposed { kind: kind.to_owned(), labels: BTreeMap::new() };
        for label in labels.split("; ").filter(|label| !label.is_empty()) {
            let (label, values) = label.split_once(": ").unwrap_or((label, ""));
            let values = values.split(", ").filter(|value| !value.is_empty()).map(str::to_owned).collect();
            metric.labels.insert(label.trim_matches('`').to_owned(), values);
        }
        if kind == "histogram" {
            all.extend(["_sum", "_count"].map(|part| (format!("{name}{part}"), metric.clone())));
            metric.labels.insert("le".to_owned(), BTreeSet::new());
            all.insert(format!("{name}_bucket"), metric);
        } else {
            all.insert(name.to_owned(), metric);
        }
    }
    all
}
