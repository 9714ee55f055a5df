//! Prints an audit as a table.

use std::fmt::Write as _;

use clap::ValueEnum;
use clusterip_runtime::style;
use clusterip_runtime::terminal::harmless;

use super::columns::{self, paint};
use super::plan_table::count;
use crate::audit::model::{
    Audit, BlockRange, Counts, ExternalCounts, ExternalPool, ExternalRange, Finding, Kind, NodePool, Pool, Range,
};
use crate::joined::joined;
use crate::nodes::block_usage;

/// The length of a fill bar, in characters.
const BAR: u128 = 20;
/// The percentage from which a pool counts as nearly full.
const NEARLY_FULL: u128 = 90;

/// The pools with their fill, then the findings by kind, then the notes, and finally the totals. The text has
/// colours; the printer strips them where they don't belong.
///
/// # Errors
/// If the columns can't be aligned.
pub fn audit(audit: &Audit) -> Result<String, std::io::Error> {
    let mut table = String::new();
    // If the settings have only node pools or external pools, the table of Service pools is left out.
    if (audit.nodes.is_none() && audit.external.is_none()) || !audit.pools.is_empty() {
        let titles = ["POOL", "RANGE", "USABLE", "USED", "CLAIMED", "FREE", "RESERVED", "BESIDE", "FILL"];
        put(
            &mut table,
            &titles,
            audit.pools.iter().flat_map(|pool| pool.ranges.iter().map(|range| cells(pool, range))),
        )?;
    }
    if let Some(nodes) = &audit.nodes {
        if !table.is_empty() {
            table.push('\n');
        }
        let titles = ["NODE POOL", "RANGE", "BLOCKS", "USABLE", "USED", "FREE", "WITHHELD", "BESIDE", "FILL"];
        let ranges = nodes.pools.iter().flat_map(|pool| pool.ranges.iter().map(|range| node_cells(pool, range)));
        put(&mut table, &titles, ranges)?;
    }
    if let Some(external) = &audit.external {
        if !table.is_empty() {
            table.push('\n');
        }
        let titles =
            ["EXTERNAL POOL", "RANGE", "USABLE", "USED", "HELD", "CLAIMED", "FREE", "EXCLUDED", "BESIDE", "FILL"];
        let ranges = external.pools.iter().flat_map(|pool| pool.ranges.iter().map(|range| external_cells(pool, range)));
        put(&mut table, &titles, ranges)?;
    }
    let mut findings = audit.findings.as_slice();
    while let Some(first) = findings.first() {
        let (group, rest) = findings.split_at(findings.partition_point(|finding| finding.kind <= first.kind));
        table.push('\n');
        table.push_str(&self::group(first.kind, group)?);
        findings = rest;
    }
    if !audit.notes.is_empty() {
        table.push('\n');
        for note in &audit.notes {
            let _ = writeln!(table, "{}", paint(style::WARNING, &format!("note: {}", harmless(note))));
        }
    }
    let _ = writeln!(table, "\n{}", totals(audit));
    Ok(table)
}

fn put(table: &mut String, titles: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Result<(), std::io::Error> {
    let head = titles.iter().map(|title| paint(style::HEAD, title)).collect();
    for line in columns::lines([head].into_iter().chain(rows))? {
        let _ = writeln!(table, "{line}");
    }
    Ok(())
}

fn node_cells(pool: &NodePool, range: &BlockRange) -> Vec<String> {
    let block_usage::Counts { usable, used, free, withheld, beside } = range.counts;
    let left = if free == 0 { paint(style::ERROR, "0") } else { count(free) };
    vec![
        harmless(&pool.name),
        range.cidr.to_string(),
        format!("/{}", range.block_length),
        count(usable),
        count(used),
        left,
        quiet(withheld),
        quiet(beside),
        fill(used, free, usable),
    ]
}

fn external_cells(pool: &ExternalPool, range: &ExternalRange) -> Vec<String> {
    let ExternalCounts { usable, used, claimed, free, excluded, beside, held } = range.counts;
    let left = if free == 0 { paint(style::ERROR, "0") } else { count(free) };
    vec![
        harmless(&pool.name),
        range.range.clone(),
        count(usable),
        count(used),
        // An unknown number is not zero.
        held.map_or_else(|| paint(style::FAINT, "?"), count),
        quiet(claimed),
        left,
        quiet(excluded),
        quiet(beside),
        fill(used.saturating_add(claimed), free, usable),
    ]
}

fn quiet(number: u128) -> String {
    if number == 0 { paint(style::FAINT, "0") } else { count(number) }
}

fn cells(pool: &Pool, range: &Range) -> Vec<String> {
    let Counts { usable, used, claimed, free, reserved, beside } = range.counts;
    let left = if free == 0 { paint(style::ERROR, "0") } else { count(free) };
    let name = harmless(&pool.name);
    let cidr = range.cidr.to_string();
    vec![
        name,
        cidr,
        count(usable),
        count(used),
        quiet(claimed),
        left,
        quiet(reserved),
        quiet(beside),
        fill(used.saturating_add(claimed), free, usable),
    ]
}

/// A bar such as `######..............  31 %`: the used and in-flight share of the usable addresses. The bar is
/// empty only if no address is taken, and complete only if no address is free.
fn fill(taken: u128, free: u128, usable: u128) -> String {
    let part = |whole: u128| match taken.checked_mul(whole) {
        Some(product) => product.checked_div(usable).unwrap_or(whole),
        None => taken / (usable / whole).max(1),
    };
    let long = part(BAR).clamp(u128::from(taken > 0), if free > 0 { BAR - 1 } else { BAR });
    let filled = usize::try_from(long).unwrap_or_default();
    let style = match part(100) {
        _ if free == 0 => style::ERROR,
        parts if parts >= NEARLY_FULL => style::WARNING,
        _ => style::GOOD,
    };
    let empty = usize::try_from(BAR).unwrap_or_default().saturating_sub(filled);
    let bar = format!("{}{}", paint(style, &"#".repeat(filled)), paint(style::FAINT, &".".repeat(empty)));
    format!("{bar} {:>3} %", part(100))
}

/// The findings of one kind; findings with the same remedy stand together, and the remedy below them.
fn group(kind: Kind, findings: &[Finding]) -> Result<String, std::io::Error> {
    let value = kind.to_possible_value();
    let help = value.as_ref().and_then(|value| value.get_help()).map(ToString::to_string).unwrap_or_default();
    let name = value.as_ref().map(|value| value.get_name()).unwrap_or_default();
    let mut text = format!("{} {}\n", paint(style(kind), &format!("{name} ({}):", findings.len())), help);
    let mut ways: Vec<&str> = Vec::new();
    for finding in findings {
        if !ways.contains(&finding.remedy.as_str()) {
            ways.push(&finding.remedy);
        }
    }
    let of_way =
        |way: &'_ str| findings.iter().filter(move |finding| finding.remedy == way).map(row).collect::<Vec<_>>();
    // All findings of the kind share the same columns.
    let rows: Vec<Vec<Vec<String>>> = ways.iter().map(|way| of_way(way)).collect();
    let mut lines = columns::lines(rows.iter().flatten().cloned())?.into_iter();
    for (way, rows) in ways.iter().zip(&rows) {
        for line in lines.by_ref().take(rows.len()) {
            let _ = writeln!(text, "  {line}");
        }
        let _ = writeln!(text, "  {}", paint(style::FAINT, &format!("=> {}", harmless(way))));
    }
    Ok(text)
}

/// The cells of a finding: the Service or Node, its addresses or blocks, and the problem; for a finding about a
/// pool only the message, which names the pool.
fn row(finding: &Finding) -> Vec<String> {
    if let Some(node) = &finding.node {
        let message = finding.message.strip_prefix(&format!("Node {node}: ")).unwrap_or(&finding.message);
        let blocks = finding.blocks.iter().map(ToString::to_string);
        let addresses = finding.addresses.iter().map(ToString::to_string);
        let blocks = blocks.chain(addresses).collect::<Vec<_>>().join(",");
        let message = message.strip_prefix(&format!("{blocks} ")).unwrap_or(message);
        return vec![harmless(node), if blocks.is_empty() { "-".to_owned() } else { blocks }, harmless(message)];
    }
    let (Some(namespace), Some(name)) = (&finding.namespace, &finding.name) else {
        return vec![harmless(&finding.message)];
    };
    let subject = format!("Service {namespace}/{name}: ");
    let message = finding.message.strip_prefix(&subject).unwrap_or(&finding.message);
    let addresses = if finding.addresses.is_empty() { "-".to_owned() } else { joined(&finding.addresses, ",") };
    let message = message.strip_prefix(&format!("{addresses} ")).unwrap_or(message);
    vec![harmless(&format!("{namespace}/{name}")), addresses, harmless(message)]
}

fn style(kind: Kind) -> anstyle::Style {
    match kind {
        Kind::HalfMoved | Kind::Misplaced | Kind::NoPool | Kind::Denied | Kind::Full | Kind::OutsideRanges => {
            style::ERROR
        }
        Kind::UnusableRange => style::ERROR,
        Kind::ByHand | Kind::Squatter | Kind::MixedNodes | Kind::LowestOrder => style::WARNING,
        Kind::OverKubernetes | Kind::OverDns => style::WARNING,
        Kind::SharedBlock | Kind::WithheldBlock | Kind::NoBlock | Kind::FullNodePool => style::ERROR,
        Kind::WrongNodePool | Kind::OutsideNodePool => style::WARNING,
        Kind::SharedExternal | Kind::RefusedExternal | Kind::NotHeld | Kind::NoExternal | Kind::FullExternalPool => {
            style::ERROR
        }
        Kind::ForeignExternal | Kind::WrongIngress | Kind::IdleClaim => style::WARNING,
    }
}

fn totals(audit: &Audit) -> String {
    let several = |count: usize, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let mut services = several(audit.services, "Service");
    if let Some(nodes) = &audit.nodes {
        let _ = write!(services, ", {}", several(nodes.count, "Node"));
    }
    if let Some(external) = &audit.external {
        let _ = write!(services, ", {} with external addresses", external.count);
    }
    if audit.findings.is_empty() {
        return format!("{services}, {}", paint(style::GOOD, "nothing found"));
    }
    let findings = if audit.findings.len() == 1 { "finding" } else { "findings" };
    let mut counts: Vec<String> = Vec::new();
    for kind in Kind::value_variants() {
        let found = audit.findings.iter().filter(|finding| finding.kind == *kind).count();
        let value = kind.to_possible_value();
        if let Some(value) = value.filter(|_| found > 0) {
            counts.push(format!("{found} {}", value.get_name()));
        }
    }
    format!("{services}, {} {findings}: {}", audit.findings.len(), counts.join(", "))
}
