//! A plan as a table for people.

use std::fmt::Write as _;

use clusterip_core::address::Family;
use clusterip_core::answer::Outcome;
use clusterip_core::evidence::Report;

use super::columns::{self, paint};
use super::json::Summary;
use super::style;
use super::terminal::harmless;
use crate::planner::{Plan, Row};
use crate::pool_use::PoolUse;

/// The table: a row for each Service, its warnings below it, and a last line with the totals. Coloured;
/// whoever prints it takes the colours out where they don't belong.
///
/// # Errors
/// Where the table can't be laid out.
pub fn plan(plan: &Plan) -> Result<String, std::io::Error> {
    let head = ["NAMESPACE", "SERVICE", "POOL", "CLUSTER-IP", "EVIDENCE"].map(|title| paint(style::HEAD, title));
    let rows = plan.rows.iter().map(|row| line(row).to_vec());
    let mut lines = columns::lines([head.to_vec()].into_iter().chain(rows))?.into_iter();
    let mut table = String::new();
    let mut put = |line: &str| {
        table.push_str(line);
        table.push('\n');
    };
    put(&lines.next().unwrap_or_default());
    for (row, line) in plan.rows.iter().zip(lines) {
        put(&line);
        if let Some(message) = row.message.as_ref().filter(|_| row.decision == Outcome::Denied) {
            put(&paint(style::ERROR, &format!("  denied: {}", harmless(message))));
        }
        for warning in &row.warnings {
            put(&paint(style::WARNING, &format!("  warning: {}", harmless(warning))));
        }
    }
    put("");
    put(&totals(plan));
    Ok(table)
}

fn line(row: &Row) -> [String; 5] {
    let pool = row.pool.as_deref().unwrap_or("-");
    let addresses = row.cluster_ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let (address, style) = match row.decision {
        Outcome::Denied => ("denied".to_owned(), style::ERROR),
        _ if addresses.is_empty() => ("-".to_owned(), style::FAINT),
        Outcome::Left => (addresses, style::FAINT),
        Outcome::Allocated => (addresses, style::GOOD),
    };
    let evidence = row.evidence.as_ref().map(|evidence| harmless(&self::evidence(evidence)));
    let evidence = match (evidence, row.decision, &row.message) {
        (None, Outcome::Left, Some(message)) => paint(style::FAINT, &format!("left: {}", harmless(message))),
        // What is known of a Service that is left tells whether its address fits.
        (Some(evidence), Outcome::Left, Some(message)) => {
            paint(style::FAINT, &format!("left: {}; {evidence}", harmless(message)))
        }
        (Some(evidence), ..) => evidence,
        (None, ..) => paint(style::FAINT, "-"),
    };
    [harmless(&row.namespace), harmless(&row.name), harmless(pool), paint(style, &address), evidence]
}

/// `os=windows, arch=amd64 (Deployment shop/web)`: the well-known labels without their prefix. Without
/// labels, what else the pool was chosen by.
fn evidence(report: &Report) -> String {
    if report.labels.is_empty() {
        return report.source.clone();
    }
    let short = |key: &str| key.strip_prefix("kubernetes.io/").unwrap_or(key).to_owned();
    let labels: Vec<String> = report.labels.iter().map(|(key, value)| format!("{}={value}", short(key))).collect();
    format!("{} ({})", labels.join(", "), report.source)
}

fn totals(plan: &Plan) -> String {
    let Summary { allocated, left, denied } = Summary::of(&plan.rows);
    let services = if plan.rows.len() == 1 { "Service" } else { "Services" };
    let mut line = format!("{} {services}: {allocated} allocated, {left} left, ", plan.rows.len());
    let denied_text = format!("{denied} denied");
    line.push_str(&if denied == 0 { denied_text } else { paint(style::ERROR, &denied_text) });
    for PoolUse { name, family, used, usable, .. } in &plan.pools {
        let several = plan.pools.iter().filter(|pool| pool.name == *name).count() > 1 || *family == Family::V6;
        let family = if several { format!(" {family}") } else { String::new() };
        // Writing to a string can't fail.
        let _ = write!(line, "; {name}{family} {used} of {} used", count(*usable));
    }
    line
}

/// A number, or about which power of two it is where nobody would read the number.
pub fn count(number: u128) -> String {
    const LONGEST: u128 = 1 << 32;
    if number < LONGEST { number.to_string() } else { format!("2^{:.0}", (number as f64).log2()) }
}
