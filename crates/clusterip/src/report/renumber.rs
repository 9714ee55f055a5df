//! The report of `clusterip renumber check`, and how far a renumbering is, as tables.

use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::style;
use clusterip_moves::renumbering::change::Change;
use serde::Serialize;
use serde_json::{Value, json};

use super::columns::{self, Layout, paint};
use crate::renumber::check::{Check, Summary};
use crate::renumber::findings::{Before, Finding, Way};
use crate::renumber::status::Status;
use crate::text::{joined, several};

/// The printer strips colours.
pub fn table(check: &Check, layout: Layout) -> String {
    let Check { change, version, installer, services, findings, steps, .. } = check;
    let title = format!("{}; Kubernetes {}, installer: {installer}", changes(change), harmless(version));
    let rows = services.iter().map(|row| {
        let style = match row.way {
            Way::Seamless | Way::Switch => style::GOOD,
            Way::Plain | Way::Stays => style::WARNING,
        };
        let why = match row.interruption_seconds {
            0 => harmless(&row.why),
            seconds => format!("{} (up to {seconds} s)", harmless(&row.why)),
        };
        let (namespace, name) = (harmless(&row.namespace), harmless(&row.name));
        vec![namespace, name, joined(&row.addresses, ","), paint(style, &json_name(row.way)), why]
    });
    let services = section(&["NAMESPACE", "SERVICE", "ADDRESS", "METHOD", "WHAT HAPPENS"], rows, layout);
    let lines = findings.iter().map(|finding| {
        let style = if finding.before == Before::Begin { style::ERROR } else { style::WARNING };
        let Finding { before, kind, object, message, remedy } = finding;
        let text = harmless(&format!("{message}: {remedy}"));
        vec![paint(style, &json_name(before)), (*kind).to_owned(), harmless(object), text]
    });
    let lines = section(&["BEFORE", "KIND", "OBJECT", "WHAT TO DO"], lines, layout);
    let steps =
        steps.iter().enumerate().map(|(at, step)| columns::paragraph(&format!("{}. {step}", at + 1), 2, 5, layout));
    let steps = ["After clusterip renumber begin:".to_owned()].into_iter().chain(steps).collect();
    columns::sections([vec![title], services, lines, steps, vec![summary(check)]])
}

/// A table; no lines without rows.
fn section(titles: &[&str], rows: impl ExactSizeIterator<Item = Vec<String>>, layout: Layout) -> Vec<String> {
    if rows.len() == 0 { Vec::new() } else { columns::table(titles, rows, layout) }
}

/// Pool objects, each as a YAML document of its own.
pub fn pools(pools: &[Value]) -> anyhow::Result<String> {
    let mut text = String::new();
    for pool in pools {
        let mut pool = pool.clone();
        pool["metadata"].as_object_mut().map(|metadata| metadata.remove("resourceVersion"));
        text += &format!("---\n{}", serde_saphyr::to_string(&pool)?);
    }
    Ok(text)
}

/// The printer strips colours.
pub fn status_table(status: Option<&Status>) -> String {
    let Some(status) = status else { return "no renumbering is recorded\n".to_owned() };
    let swaps = status.swaps.iter().map(|swap| {
        let endpoints = if swap.endpoints_equal { "the same endpoints" } else { "other endpoints" };
        vec![swap.service.clone(), joined(&swap.addresses, ","), swap.alias.clone(), endpoints.to_owned()]
    });
    let swaps = section(&["SERVICE", "OLD ADDRESS", "HELD BY", "WITH"], swaps, Layout::default());
    let list = |title: &str, items: &[String]| {
        let lines = items.iter().map(|item| format!("  {}", harmless(item)));
        if items.is_empty() { Vec::new() } else { std::iter::once(title.to_owned()).chain(lines).collect() }
    };
    columns::sections([
        vec![changes(&status.change), format!("phase: {}", status.phase.as_str()), format!("next: {}", status.next)],
        swaps,
        list("Services with an address of the old range:", &status.left_old),
        list("Pods and kubelets that know old addresses:", &status.users_of_old),
    ])
}

/// The name of a variant in JSON.
fn json_name(variant: impl Serialize) -> String {
    json!(variant).as_str().unwrap_or_default().to_owned()
}

fn changes(change: &Change) -> String {
    joined(change.0.iter().map(|pair| format!("{} becomes {}", pair.from, pair.to)), ", ")
}

fn summary(check: &Check) -> String {
    let Summary { seamless, plain, switch, stay, ready } = check.summary;
    let moves = format!(
        "{}: {seamless} seamless, {plain} plain, {switch} by the switch, {stay} to change by hand",
        several(check.services.len(), "Service")
    );
    if ready {
        return moves;
    }
    let problems = check.findings.iter().filter(|finding| finding.before == Before::Begin).count();
    format!("{moves}; {} before clusterip renumber begin", several(problems, "problem"))
}
