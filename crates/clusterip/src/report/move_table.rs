//! Prints misplaced Services as a table.

use std::net::IpAddr;

use clusterip_runtime::style;
use clusterip_runtime::terminal::harmless;

use super::columns::{self, Layout, paint};
use crate::joined::joined;

/// A misplaced Service, and what happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// The current addresses of the Service.
    pub from: Vec<IpAddr>,
    /// The addresses that the Service moves to, empty if they are not known yet; `None` if it stays.
    pub to: Option<Vec<IpAddr>>,
    /// Why the Service is misplaced or half moved.
    pub why: String,
    /// Why the Service stays; `None` if it moves.
    pub stays: Option<String>,
    /// Whether the Service stays because no address was found for it or it could not be read.
    pub stuck: bool,
}

/// A row for each Service, followed by a line with the reason if it stays. The text has colours; the printer strips
/// them where they don't belong.
pub fn table(rows: &[Row], layout: Layout) -> String {
    let head = ["NAMESPACE", "SERVICE", "FROM", "TO", "WHY"].map(|title| paint(style::HEAD, title));
    let head = (!layout.no_headers).then(|| head.to_vec());
    let heads = usize::from(head.is_some());
    let mut lines = columns::lines(head.into_iter().chain(rows.iter().map(cells)), 0, layout).into_iter();
    let mut table = String::new();
    let mut put = |line: &str| {
        table.push_str(line);
        table.push('\n');
    };
    lines.by_ref().take(heads).for_each(|head| put(&head));
    for (row, line) in rows.iter().zip(lines) {
        put(&line);
        if let Some(stays) = &row.stays {
            let stays = paint(style::WARNING, &format!("stays: {}", harmless(stays)));
            put(&columns::paragraph(&stays, 2, 4, layout));
        }
    }
    table
}

fn cells(row: &Row) -> Vec<String> {
    let to = match &row.to {
        Some(to) if to.is_empty() => paint(style::FAINT, "(as recorded)"),
        Some(to) => paint(style::GOOD, &joined(to, ",")),
        None => paint(style::WARNING, "stays"),
    };
    let from = if row.from.is_empty() { "-".to_owned() } else { joined(&row.from, ",") };
    vec![harmless(&row.namespace), harmless(&row.name), from, to, harmless(&row.why)]
}
