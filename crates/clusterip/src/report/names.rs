//! Prints the objects of the findings of an audit.

use clusterip_runtime::terminal::harmless;

use super::finding::Subject;
use crate::audit::model::Audit;

/// A line for each object that a finding is about, such as `service/shop/web`, in the order of the first findings.
pub fn names(audit: &Audit) -> String {
    let mut names: Vec<String> = Vec::new();
    for finding in &audit.findings {
        let name = harmless(&Subject::of(finding).to_string());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.into_iter().map(|name| name + "\n").collect()
}
