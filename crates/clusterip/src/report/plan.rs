//! Prints a plan as a table and as JSON.

use std::fmt::{Display, Write as _};

use clusterip_cluster::style;
use clusterip_cluster::terminal::harmless;
use clusterip_core::Verdict;
use clusterip_core::address::Family;
use clusterip_core::annotations::in_record;
use clusterip_core::decision::{RecordChange, Report};
use serde::Serialize;

use super::audit_table;
use super::columns::{self, Layout, paint, put_table};
use crate::audit::misplaced_services::MisplacedService;
use crate::audit::model::Finding;
use crate::planner::nodes::{NodePlan, NodeRow, RangeUsage};
use crate::planner::{AddressSource, ExternalRow, Plan, Row};
use crate::text::{joined, rounded, several};
use crate::usage::PoolUsage;

/// A row for each Service, then one for each Service that gets external addresses, then one for each Node, with their
/// denials and warnings below them, then the existing Services that are misplaced with the settings of the plan, as an
/// audit prints them, and finally a line with the totals of each. The text has colours; the printer strips them where
/// they don't belong.
pub fn table(plan: &Plan, misplaced: &[MisplacedService], layout: Layout) -> String {
    let mut text = String::new();
    let mut sums = Vec::new();
    // If the plan is about Nodes only, the table of Services is left out.
    let nodes = plan.nodes.as_ref().filter(|nodes| !nodes.rows.is_empty() || !plan.rows.is_empty());
    if nodes.is_none() || !plan.rows.is_empty() {
        let head = ["NAMESPACE", "SERVICE", "BELONGS TO", "CLUSTER-IP", "EVIDENCE"];
        let rows = plan.rows.iter();
        let rows = rows.map(|row| (line(row), remarks(&row.decision, row.message.as_deref(), &row.warnings)));
        put_table(&mut text, &head, rows, layout);
        sums.push(totals(plan));
    }
    if let Some(pools) = &plan.external {
        let rows = plan.rows.iter().filter_map(|row| Some((row, row.external.as_ref()?)));
        // The reason of a denial is in the row of its Service above.
        let mut rows = rows.filter(|(row, _)| !row.decision.is_denied()).peekable();
        if rows.peek().is_some() {
            text.push('\n');
            let head = ["NAMESPACE", "SERVICE", "EXTERNAL POOL", "EXTERNAL-IP", "REASON"];
            let rows = rows.map(|(row, external)| (external_line(row, external), Vec::new()));
            put_table(&mut text, &head, rows, layout);
        }
        sums.extend((!plan.rows.is_empty()).then(|| external_totals(plan, pools)));
    }
    if let Some(nodes) = nodes.filter(|nodes| !nodes.rows.is_empty()) {
        if !text.is_empty() {
            text.push('\n');
        }
        let head = ["NODE", "BELONGS TO", "BLOCKS", "EVIDENCE"];
        let rows = nodes.rows.iter();
        let rows = rows.map(|row| (node_line(row), remarks(&row.decision, row.message.as_deref(), &row.warnings)));
        put_table(&mut text, &head, rows, layout);
    }
    sums.extend(nodes.map(node_totals));
    if !misplaced.is_empty() {
        let findings: Vec<Finding> = misplaced.iter().map(|service| service.finding.clone()).collect();
        audit_table::put_findings(&mut text, &findings, layout);
        sums.push(misplaced_totals(misplaced));
    }
    for (index, sum) in sums.iter().enumerate() {
        let sum = columns::paragraph(sum, 0, 2, layout);
        let _ = writeln!(text, "{}{sum}", if index == 0 { "\n" } else { "" });
    }
    text
}

/// The lines below a row.
fn remarks(decision: &Verdict, message: Option<&str>, warnings: &[String]) -> Vec<String> {
    let denied = message.filter(|_| decision.is_denied());
    let denied = denied.map(|message| paint(style::ERROR, &format!("denied: {}", harmless(message))));
    let warnings = warnings.iter().map(|warning| paint(style::WARNING, &format!("warning: {}", harmless(warning))));
    denied.into_iter().chain(warnings).collect()
}

fn line(row: &Row) -> Vec<String> {
    let [pool, given, evidence] =
        common(&row.decision, row.pool.as_deref(), &row.cluster_ips, row.evidence.as_ref(), row.message.as_deref());
    vec![harmless(&row.namespace), harmless(&row.name), pool, given, evidence]
}

fn node_line(row: &NodeRow) -> Vec<String> {
    let [pool, given, evidence] =
        common(&row.decision, row.pool.as_deref(), &row.pod_cidrs, row.evidence.as_ref(), row.message.as_deref());
    vec![harmless(&row.name), pool, given, evidence]
}

fn external_line(row: &Row, ExternalRow { decision, pool, addresses, source, message }: &ExternalRow) -> Vec<String> {
    let given = if addresses.is_empty() { "-".to_owned() } else { in_record(addresses) };
    let style = if *decision == RecordChange::Recorded { style::GOOD } else { style::FAINT };
    let reason = match (message, decision) {
        (None, _) => match source {
            Some(AddressSource::Asked) => "asked for".to_owned(),
            Some(AddressSource::Kept) => "kept from before".to_owned(),
            Some(AddressSource::Free) => "free".to_owned(),
            None => "-".to_owned(),
        },
        (Some(message), RecordChange::Unchanged) => format!("unchanged: {}", harmless(message)),
        (Some(message), decision) => format!("{}: {}", decision.name(), harmless(message)),
    };
    let [namespace, name] = [&row.namespace, &row.name].map(|text| harmless(text));
    let pool = harmless(pool.as_deref().unwrap_or("-"));
    vec![namespace, name, pool, paint(style, &given), paint(style::FAINT, &reason)]
}

/// The cells that Services and Nodes have in common: the pool, the addresses or blocks, and the evidence.
fn common<T: Display>(
    decision: &Verdict,
    pool: Option<&str>,
    given: &[T],
    evidence: Option<&Report>,
    message: Option<&str>,
) -> [String; 3] {
    let given = joined(given, ",");
    let (given, style) = match decision {
        Verdict::Denied(_) => ("denied".to_owned(), style::ERROR),
        _ if given.is_empty() => ("-".to_owned(), style::FAINT),
        Verdict::Unchanged(_) => (given, style::FAINT),
        Verdict::Allocated(_) | Verdict::Assigned(_) => (given, style::GOOD),
    };
    let evidence = evidence.map(|evidence| harmless(&self::evidence(evidence)));
    let evidence = match (evidence, decision, message) {
        (None, Verdict::Unchanged(_), Some(message)) => {
            paint(style::FAINT, &format!("unchanged: {}", harmless(message)))
        }
        // The evidence about a Service that stays unchanged shows whether its address fits.
        (Some(evidence), Verdict::Unchanged(_), Some(message)) => {
            paint(style::FAINT, &format!("unchanged: {}; {evidence}", harmless(message)))
        }
        (Some(evidence), ..) => evidence,
        (None, ..) => paint(style::FAINT, "-"),
    };
    [harmless(pool.unwrap_or("-")), paint(style, &given), evidence]
}

/// The evidence in words, such as `os=windows, arch=amd64 (Deployment shop/web)`, with well-known labels without
/// their prefix. Without labels, what else the pool was chosen by.
fn evidence(report: &Report) -> String {
    if report.labels.is_empty() {
        return report.source.clone();
    }
    let short = |key: &str| key.strip_prefix("kubernetes.io/").unwrap_or(key).to_owned();
    let labels: Vec<String> = report.labels.iter().map(|(key, value)| format!("{}={value}", short(key))).collect();
    format!("{} ({})", labels.join(", "), report.source)
}

fn totals(plan: &Plan) -> String {
    let mut line = decisions(plan.rows.len(), "Service", Summary::of(&plan.rows));
    put_pools(&mut line, &plan.pools);
    line
}

fn put_pools(line: &mut String, pools: &[PoolUsage]) {
    for PoolUsage { pool: name, family, usage } in pools {
        let several = pools.iter().filter(|pool| pool.pool == *name).count() > 1 || *family == Family::V6;
        let family = if several { format!(" {family}") } else { String::new() };
        // `write!` to a `String` never fails.
        let _ = write!(line, "; {name}{family} {} of {} used", usage.used, rounded(usage.usable));
    }
}

fn external_totals(plan: &Plan, pools: &[PoolUsage]) -> String {
    let summary = ExternalSummary::of(&plan.rows);
    let ExternalSummary { recorded, removed, unchanged, denied } = summary;
    let removed = if removed == 0 { String::new() } else { format!(", {removed} removed") };
    let (services, denied) = (several(summary.all(), "Service"), painted_denied(denied));
    let mut line =
        format!("{services} about external addresses: {recorded} recorded{removed}, {unchanged} unchanged, {denied}");
    put_pools(&mut line, pools);
    line
}

fn node_totals(plan: &NodePlan) -> String {
    let mut line = decisions(plan.rows.len(), "Node", Summary::of_nodes(&plan.rows));
    for RangeUsage { pool, cidr, usage } in &plan.ranges {
        let several = plan.ranges.iter().filter(|range| range.pool == *pool).count() > 1;
        let range = if several { format!(" {cidr}") } else { String::new() };
        let _ = write!(line, "; {pool}{range} {} of {} blocks used", rounded(usage.used), rounded(usage.usable));
    }
    line
}

/// How many existing Services are misplaced, with the totals of `clusterip move`.
fn misplaced_totals(misplaced: &[MisplacedService]) -> String {
    let (all, to_move) = (misplaced.len(), misplaced.iter().filter(|service| service.moves).count());
    let services = if all == 1 { "Service" } else { "Services" };
    format!("{all} existing {services} misplaced with these settings: {to_move} to move, {} stay", all - to_move)
}

/// The totals, such as `20 Services: 16 allocated, 4 unchanged, 0 denied`.
fn decisions(all: usize, one: &str, Summary { allocated, unchanged, denied }: Summary) -> String {
    let (objects, denied) = (several(all, one), painted_denied(denied));
    format!("{objects}: {allocated} allocated, {unchanged} unchanged, {denied}")
}

fn painted_denied(denied: usize) -> String {
    let text = format!("{denied} denied");
    if denied == 0 { text } else { paint(style::ERROR, &text) }
}

#[derive(Serialize)]
struct Document<'p> {
    services: &'p [Row],
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'p [NodeRow]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    misplaced: &'p [MisplacedService],
    pools: Pools<'p>,
    summary: All,
}

/// How full the pools are after the plan.
#[derive(Serialize)]
struct Pools<'p> {
    services: &'p [PoolUsage],
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<&'p [PoolUsage]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'p [RangeUsage]>,
}

/// The totals of Services; external addresses and Nodes have keys of their own below.
#[derive(Serialize)]
struct All {
    #[serde(flatten)]
    services: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<ExternalSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Summary>,
}

/// The number of Services or Nodes for each decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Summary {
    /// Objects that get an address or a block.
    allocated: usize,
    /// Objects that stay as they are.
    unchanged: usize,
    denied: usize,
}

impl Summary {
    /// Counts the decisions about Services.
    fn of(rows: &[Row]) -> Self {
        Self::count(rows.iter().map(|row| &row.decision))
    }

    fn of_nodes(rows: &[NodeRow]) -> Self {
        Self::count(rows.iter().map(|row| &row.decision))
    }

    fn count<'r>(decisions: impl Iterator<Item = &'r Verdict> + Clone) -> Self {
        let count = |name| decisions.clone().filter(|decision| decision.name() == name).count();
        Self { allocated: count("allocated"), unchanged: count("unchanged"), denied: count("denied") }
    }
}

/// The number of Services for each decision about their external addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct ExternalSummary {
    /// Services that get addresses.
    recorded: usize,
    /// Services that lose their addresses.
    removed: usize,
    /// Services that stay as they are.
    unchanged: usize,
    /// Services that are denied for the addresses that they claim.
    denied: usize,
}

impl ExternalSummary {
    /// Counts the decisions about external addresses.
    fn of(rows: &[Row]) -> Self {
        let decisions = || rows.iter().filter_map(|row| Some(row.external.as_ref()?.decision));
        let count = |wanted| decisions().filter(|decision| *decision == wanted).count();
        Self {
            recorded: count(RecordChange::Recorded),
            removed: count(RecordChange::Removed),
            unchanged: count(RecordChange::Unchanged),
            denied: count(RecordChange::Denied),
        }
    }

    /// The total number of these Services.
    fn all(&self) -> usize {
        self.recorded + self.removed + self.unchanged + self.denied
    }
}

/// The plan as indented JSON with a final line break. `misplaced` are the existing Services that are misplaced with the
/// settings of the plan.
pub fn json(plan: &Plan, misplaced: &[MisplacedService]) -> Result<String, serde_json::Error> {
    let nodes = plan.nodes.as_ref().map(|nodes| nodes.rows.as_slice());
    let summary = All {
        services: Summary::of(&plan.rows),
        external: plan.external.as_ref().map(|_| ExternalSummary::of(&plan.rows)),
        nodes: nodes.map(Summary::of_nodes),
    };
    let ranges = plan.nodes.as_ref().map(|nodes| nodes.ranges.as_slice());
    let pools = Pools { services: &plan.pools, external: plan.external.as_deref(), nodes: ranges };
    let document = Document { services: &plan.rows, nodes, misplaced, pools, summary };
    super::json(&document)
}
