//! The report of `clusterip renumber check`, and how far a renumbering is, as tables and as JSON.

use std::net::IpAddr;

use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::style;
use clusterip_moves::renumbering::change::Change;
use clusterip_moves::renumbering::observed::{Held, Observed, SwapState};
use clusterip_moves::renumbering::record::{Phase, Record, Side, Swap};
use serde::Serialize;
use serde_json::{Value, json};

use super::columns::{self, Layout, paint};
use crate::renumber::check::{Check, Summary};
use crate::renumber::findings::{Before, Finding, Way};
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
    let steps = list("After clusterip renumber begin:", steps);
    columns::sections([vec![title], services, lines, steps, vec![summary(check)]])
}

/// Lines below a title; none without lines.
fn list(title: &str, lines: impl ExactSizeIterator<Item = String>) -> Vec<String> {
    if lines.len() == 0 { Vec::new() } else { std::iter::once(title.to_owned()).chain(lines).collect() }
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

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    change: Change,
    phase: Phase,
    next: &'static str,
    swaps: Vec<SwapStatus>,
    /// The first Services with addresses of the old ranges, and a text about the others.
    left_old: Vec<String>,
    users_of_old: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SwapStatus {
    service: String,
    addresses: Vec<IpAddr>,
    /// The Service that holds the old addresses; `nothing` in the middle of the swap.
    held_by: String,
    /// Whether the alias has the endpoints of the Service.
    endpoints_equal: bool,
}

impl Status {
    pub fn of(record: Record, observed: Observed) -> Self {
        let swap = |(swap, state): (Swap, SwapState)| {
            let service = format!("{}/{}", swap.namespace, swap.name);
            let held_by = match (state.service, state.old_alias) {
                (_, Held::Old) => format!("{}/{}", swap.namespace, swap.alias_name(Side::Old)),
                (Held::Old, _) => service.clone(),
                _ => "nothing".to_owned(),
            };
            let endpoints_equal = if state.has_selector { state.has_own_endpoints } else { state.has_equal_copies };
            SwapStatus { service, addresses: swap.old, held_by, endpoints_equal }
        };
        let swaps = record.swaps.into_iter().zip(observed.swaps).map(swap).collect();
        let (left_old, users_of_old) = (observed.left_old.texts(), observed.users_of_old);
        Self { change: record.change, phase: record.phase, next: record.phase.next(), swaps, left_old, users_of_old }
    }
}

/// The printer strips colours.
pub fn status_table(status: Option<&Status>) -> String {
    let Some(status) = status else { return "no renumbering is recorded\n".to_owned() };
    let swaps = status.swaps.iter().map(|swap| {
        let endpoints = if swap.endpoints_equal { "the same endpoints" } else { "other endpoints" };
        vec![swap.service.clone(), joined(&swap.addresses, ","), swap.held_by.clone(), endpoints.to_owned()]
    });
    let swaps = section(&["SERVICE", "OLD ADDRESS", "HELD BY", "WITH"], swaps, Layout::default());
    let indented = |item: &String| format!("  {}", harmless(item));
    columns::sections([
        vec![changes(&status.change), format!("phase: {}", status.phase.as_str()), format!("next: {}", status.next)],
        swaps,
        list("Services with an address of the old range:", status.left_old.iter().map(indented)),
        list("Pods and kubelets that know old addresses:", status.users_of_old.iter().map(indented)),
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
