//! Misplaced Services as a table for people.

use std::net::IpAddr;

use super::columns::{self, paint};
use super::style;
use super::terminal::harmless;

/// A misplaced Service, and what is to become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub from: Vec<IpAddr>,
    /// Where it goes; nothing for one that stays.
    pub to: Option<Vec<IpAddr>>,
    /// Why it is misplaced, or half moved.
    pub why: String,
    /// Why it stays; nothing for one that moves.
    pub stays: Option<String>,
    /// Whether it stays because nothing better could be had.
    pub stuck: bool,
}

/// The table: a row for each Service, and below it why it stays, where it does. Coloured; whoever prints
/// it takes the colours out where they don't belong.
///
/// # Errors
/// Where the table can't be laid out.
pub fn table(rows: &[Row]) -> std::io::Result<String> {
    let head = ["NAMESPACE", "SERVICE", "FROM", "TO", "WHY"].map(|title| paint(style::HEAD, title));
    let mut lines = columns::lines([head.to_vec()].into_iter().chain(rows.iter().map(cells)))?.into_iter();
    let mut table = String::new();
    let mut put = |line: &str| {
        table.push_str(line);
        table.push('\n');
    };
    put(&lines.next().unwrap_or_default());
    for (row, line) in rows.iter().zip(lines) {
        put(&line);
        if let Some(stays) = &row.stays {
            put(&paint(style::WARNING, &format!("  stays: {}", harmless(stays))));
        }
    }
    Ok(table)
}

/// Addresses with commas between them.
pub fn listed(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn cells(row: &Row) -> Vec<String> {
    let to = match &row.to {
        Some(to) if to.is_empty() => paint(style::FAINT, "(found then)"),
        Some(to) => paint(style::GOOD, &listed(to)),
        None => paint(style::WARNING, "stays"),
    };
    let from = if row.from.is_empty() { "-".to_owned() } else { listed(&row.from) };
    vec![harmless(&row.namespace), harmless(&row.name), from, to, harmless(&row.why)]
}
