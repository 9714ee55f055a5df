//! Prints a plan as a table and as JSON.

use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::style;
use clusterip_core::Verdict;
use clusterip_core::address::Family;
use clusterip_core::annotations::in_record;
use clusterip_core::decision::RecordChange;
use serde::{Serialize, Serializer};

use super::audit_parts::evidence;
use super::audit_table;
use super::columns::{self, Layout, paint};
use crate::audit::model::Finding;
use crate::planner::nodes::RangeUsage;
use crate::planner::{AddressSource, ExternalRow, Plan, Row};
use crate::text::{joined, rounded, several};
use crate::usage::PoolUsage;

/// The Services, those that get external addresses, the Nodes, the existing Services that are misplaced with the settings
/// of the plan, as an audit prints them, and the totals of each. The printer strips colours.
pub fn table(plan: &Plan, layout: Layout) -> String {
    let (mut sections, mut sums) = (Vec::new(), Vec::new());
    let rows = |head: &[&str], rows: &[Row]| {
        columns::table_with_remarks(head, rows.iter().map(|row| (cells(row), remarks(row))), layout)
    };
    // If the plan is about Nodes only, the table of Services is left out.
    let nodes = plan.nodes.as_ref().filter(|nodes| !nodes.is_empty() || !plan.rows.is_empty());
    if nodes.is_none() || !plan.rows.is_empty() {
        sections.push(rows(&["NAMESPACE", "SERVICE", "BELONGS TO", "CLUSTER-IP", "EVIDENCE"], &plan.rows));
        let counts = Counts::of_objects(&plan.rows);
        sums.push(format!("{}: {}{}", several(plan.rows.len(), "Service"), counts.text(), used(&plan.pools.services)));
    }
    if let Some(pools) = &plan.pools.external {
        let rows = plan.rows.iter().filter_map(|row| Some((row, row.external.as_deref()?)));
        // The reason of a denial is in the row of its Service above.
        let mut rows = rows.filter(|(row, _)| !row.decision.is_denied()).peekable();
        if rows.peek().is_some() {
            let head = ["NAMESPACE", "SERVICE", "EXTERNAL POOL", "EXTERNAL-IP", "REASON"];
            sections.push(columns::table(&head, rows.map(|(row, external)| external_line(row, external)), layout));
        }
        if !plan.rows.is_empty() {
            let counts = Counts::of_external(&plan.rows);
            let services = several(counts.0.iter().map(|(_, count)| count).sum(), "Service");
            sums.push(format!("{services} about external addresses: {}{}", counts.text(), used(pools)));
        }
    }
    if let Some(nodes) = nodes {
        if !nodes.is_empty() {
            sections.push(rows(&["NODE", "BELONGS TO", "BLOCKS", "EVIDENCE"], nodes));
        }
        let ranges = plan.pools.nodes.as_deref().unwrap_or_default();
        let counts = Counts::of_objects(nodes);
        sums.push(format!("{}: {}{}", several(nodes.len(), "Node"), counts.text(), used_blocks(ranges)));
    }
    if !plan.misplaced.is_empty() {
        let findings: Vec<Finding> = plan.misplaced.iter().map(|service| service.finding.clone()).collect();
        sections.extend(audit_table::groups(&findings, layout));
        let (all, to_move) = (findings.len(), plan.misplaced.iter().filter(|service| service.moves).count());
        let services = several(all, "existing Service");
        let stay = all - to_move;
        sums.push(format!("{services} misplaced with these settings: {to_move} to move, {stay} stay"));
    }
    sections.push(sums.iter().map(|sum| columns::paragraph(sum, 0, 2, layout)).collect());
    columns::sections(sections)
}

fn remarks(row: &Row) -> Vec<String> {
    let denied = row.message.as_ref().filter(|_| row.decision.is_denied());
    let denied = denied.map(|message| paint(style::ERROR, &format!("denied: {}", harmless(message))));
    let warning = |warning: &String| paint(style::WARNING, &format!("warning: {}", harmless(warning)));
    denied.into_iter().chain(row.warnings.iter().map(warning)).collect()
}

fn external_line(
    row: &Row,
    ExternalRow { decision, pool, addresses, source, message, .. }: &ExternalRow,
) -> Vec<String> {
    let given = if addresses.is_empty() { "-".to_owned() } else { in_record(addresses) };
    let style = if *decision == RecordChange::Recorded { style::GOOD } else { style::FAINT };
    let reason = match (message, source) {
        (None, Some(AddressSource::Asked)) => "asked for".to_owned(),
        (None, Some(AddressSource::Kept)) => "kept from before".to_owned(),
        (None, Some(AddressSource::Free)) => "free".to_owned(),
        (None, None) => "-".to_owned(),
        (Some(message), _) => format!("{}: {}", decision.name(), harmless(message)),
    };
    let names = row.namespace.iter().chain([&row.name]).map(|text| harmless(text));
    let pool = harmless(pool.as_deref().unwrap_or("-"));
    names.chain([pool, paint(style, &given), paint(style::FAINT, &reason)]).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let given = row.given.texts().join(",");
    let (given, style) = match row.decision {
        Verdict::Denied(_) => ("denied".to_owned(), style::ERROR),
        _ if given.is_empty() => ("-".to_owned(), style::FAINT),
        Verdict::Unchanged(_) => (given, style::FAINT),
        Verdict::Allocated(_) | Verdict::Assigned(_) => (given, style::GOOD),
    };
    // Well-known labels have no prefix.
    let short = |key: &str| key.strip_prefix("kubernetes.io/").unwrap_or(key).to_owned();
    let evidence = row.evidence.as_ref().map(|report| harmless(&evidence(report, short)));
    let message = row.message.as_ref().filter(|_| matches!(row.decision, Verdict::Unchanged(_)));
    let unchanged = message.map(|message| format!("unchanged: {}", harmless(message)));
    // The evidence about a Service that stays unchanged shows whether its address fits.
    let evidence = match (joined(unchanged.iter().chain(&evidence), "; "), unchanged) {
        (text, None) if !text.is_empty() => text,
        (text, _) => paint(style::FAINT, if text.is_empty() { "-" } else { &text }),
    };
    let names = row.namespace.iter().chain([&row.name]).map(|text| harmless(text));
    names.chain([harmless(row.pool.as_deref().unwrap_or("-")), paint(style, &given), evidence]).collect()
}

fn used(pools: &[PoolUsage]) -> String {
    let of_pool = |PoolUsage { pool: name, family, usage }: &PoolUsage| {
        let several = pools.iter().filter(|pool| pool.pool == *name).count() > 1 || *family == Family::V6;
        let family = if several { format!(" {family}") } else { String::new() };
        format!("; {name}{family} {} of {} used", usage.used, rounded(usage.usable))
    };
    pools.iter().map(of_pool).collect()
}

fn used_blocks(ranges: &[RangeUsage]) -> String {
    let of_range = |RangeUsage { pool, cidr, usage }: &RangeUsage| {
        let several = ranges.iter().filter(|range| range.pool == *pool).count() > 1;
        let range = if several { format!(" {cidr}") } else { String::new() };
        format!("; {pool}{range} {} of {} blocks used", rounded(usage.used), rounded(usage.usable))
    };
    ranges.iter().map(of_range).collect()
}

#[derive(Serialize)]
struct Document<'p> {
    #[serde(flatten)]
    plan: &'p Plan,
    summary: Summary,
}

/// The totals of Services; external addresses and Nodes have keys of their own below.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    services: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<Counts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Counts>,
}

struct Counts(Vec<(&'static str, usize)>);

impl Counts {
    fn of_objects(rows: &[Row]) -> Self {
        Self::of(&["allocated", "unchanged", "denied"], rows.iter().map(|row| row.decision.name()))
    }

    fn of_external(rows: &[Row]) -> Self {
        let decisions = rows.iter().filter_map(|row| Some(row.external.as_ref()?.decision.name()));
        Self::of(&["recorded", "removed", "unchanged", "denied"], decisions)
    }

    fn of<'n>(names: &[&'static str], decisions: impl Iterator<Item = &'n str> + Clone) -> Self {
        let count = |name: &str| decisions.clone().filter(|decision| *decision == name).count();
        Self(names.iter().map(|name| (*name, count(name))).collect())
    }

    /// Such as `16 allocated, 4 unchanged, 0 denied`.
    fn text(&self) -> String {
        let text = |(name, count): &(&str, usize)| match (*name, format!("{count} {name}")) {
            ("removed", _) if *count == 0 => None,
            ("denied", text) if *count > 0 => Some(paint(style::ERROR, &text)),
            (_, text) => Some(text),
        };
        joined(self.0.iter().filter_map(text), ", ")
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}

/// What `-o json` prints.
pub fn document(plan: &Plan) -> impl Serialize {
    let summary = Summary {
        services: Counts::of_objects(&plan.rows),
        external: plan.pools.external.as_ref().map(|_| Counts::of_external(&plan.rows)),
        nodes: plan.nodes.as_deref().map(Counts::of_objects),
    };
    Document { plan, summary }
}
