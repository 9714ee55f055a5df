//! Prints the findings of an audit in SARIF 2.1.0, which code scanning services read.

use serde::Serialize;

use super::finding::{Severity, Subject, kind_help, kind_name};
use crate::audit::model::{Audit, Finding, Kind};

#[derive(Serialize)]
struct Log {
    #[serde(rename = "$schema")]
    schema: &'static str,
    version: &'static str,
    runs: [Run; 1],
}

#[derive(Serialize)]
struct Run {
    tool: Tool,
    invocations: [Invocation; 1],
    results: Vec<Found>,
}

#[derive(Serialize)]
struct Tool {
    driver: Driver,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Driver {
    name: &'static str,
    information_uri: &'static str,
    rules: Vec<Rule>,
}

/// A kind of finding.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    id: String,
    short_description: Text,
    default_configuration: Configuration,
}

#[derive(Serialize)]
struct Configuration {
    level: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Invocation {
    execution_successful: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_execution_notifications: Vec<Notification>,
}

/// A note of the audit.
#[derive(Serialize)]
struct Notification {
    level: &'static str,
    message: Text,
}

/// A finding.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    rule_id: String,
    rule_index: usize,
    level: &'static str,
    message: Text,
    locations: [Location; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    logical_locations: [LogicalLocation; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LogicalLocation {
    name: String,
    fully_qualified_name: String,
    kind: &'static str,
}

#[derive(Serialize)]
struct Text {
    text: String,
}

/// The findings as indented JSON with a final line break. The rules are the kinds of findings that occur.
///
/// # Errors
/// If the findings can't be serialized.
pub fn sarif(audit: &Audit) -> Result<String, serde_json::Error> {
    let mut kinds: Vec<Kind> = audit.findings.iter().map(|finding| finding.kind).collect();
    // Findings are sorted by kind.
    kinds.dedup();
    let results = audit.findings.iter().map(|finding| {
        let rule_index = kinds.iter().position(|kind| *kind == finding.kind).unwrap_or_default();
        found(finding, rule_index)
    });
    let driver = Driver {
        name: "clusterip",
        information_uri: env!("CARGO_PKG_REPOSITORY"),
        rules: kinds.iter().map(|kind| rule(*kind)).collect(),
    };
    let notifications =
        audit.notes.iter().map(|note| Notification { level: "note", message: Text { text: note.clone() } });
    let log = Log {
        schema: "https://json.schemastore.org/sarif-2.1.0.json",
        version: "2.1.0",
        runs: [Run {
            tool: Tool { driver },
            invocations: [Invocation {
                execution_successful: true,
                tool_execution_notifications: notifications.collect(),
            }],
            results: results.collect(),
        }],
    };
    Ok(serde_json::to_string_pretty(&log)? + "\n")
}

fn rule(kind: Kind) -> Rule {
    Rule {
        id: kind_name(kind),
        short_description: Text { text: kind_help(kind) },
        default_configuration: Configuration { level: level(kind) },
    }
}

fn found(finding: &Finding, rule_index: usize) -> Found {
    let subject = Subject::of(finding);
    let logical = LogicalLocation {
        name: subject.name().to_owned(),
        fully_qualified_name: subject.to_string(),
        kind: "resource",
    };
    Found {
        rule_id: kind_name(finding.kind),
        rule_index,
        level: level(finding.kind),
        message: Text { text: format!("{}; {}", finding.message, finding.remedy) },
        locations: [Location { logical_locations: [logical] }],
    }
}

fn level(kind: Kind) -> &'static str {
    match Severity::of(kind) {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}
