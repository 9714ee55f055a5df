//! Prints the objects of the findings of an audit.

use std::collections::HashSet;

use clusterip_cluster::terminal::harmless;

use super::finding::Subject;
use crate::audit::model::Audit;

/// A line for each object that a finding is about, such as `service/shop/web`, in the order of the first findings.
pub fn names(audit: &Audit) -> String {
    let mut printed: HashSet<String> = HashSet::new();
    let mut text = String::new();
    for finding in &audit.findings {
        let name = harmless(&Subject::of(finding).to_string());
        if !printed.contains(&name) {
            text.push_str(&name);
            text.push('\n');
            printed.insert(name);
        }
    }
    text
}
