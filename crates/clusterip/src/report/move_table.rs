//! Prints misplaced Services as a table.

use std::net::IpAddr;

use clusterip_cluster::style;
use clusterip_cluster::terminal::harmless;

use super::columns::{self, Layout, paint};
use crate::joined::joined;
use crate::services::mover::seamless::method::Method;

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
    /// How the Service moves; `None` if it stays, or if its move has begun.
    pub method: Option<Method>,
}

/// A row for each Service, followed by a line with the reason if it stays. With `methods`, also shows how each Service
/// moves, and what its clients notice. The text has colours; the printer strips them where they don't belong.
pub fn table(rows: &[Row], methods: bool, layout: Layout) -> String {
    let titles: &[&str] = match methods {
        true => &["NAMESPACE", "SERVICE", "FROM", "TO", "METHOD", "WHY"],
        false => &["NAMESPACE", "SERVICE", "FROM", "TO", "WHY"],
    };
    let head = (!layout.no_headers).then(|| titles.iter().map(|title| paint(style::HEAD, title)).collect());
    let heads = usize::from(head.is_some());
    let cells = rows.iter().map(|row| cells(row, methods));
    let mut lines = columns::lines(head.into_iter().chain(cells), 0, layout).into_iter();
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
        if let Some(method) = row.method.filter(|_| methods) {
            put(&columns::paragraph(&format!("clients {method}"), 2, 4, layout));
        }
    }
    table
}

fn cells(row: &Row, methods: bool) -> Vec<String> {
    let to = match &row.to {
        Some(to) if to.is_empty() => paint(style::FAINT, "(as recorded)"),
        Some(to) => paint(style::GOOD, &joined(to, ",")),
        None => paint(style::WARNING, "stays"),
    };
    let from = if row.from.is_empty() { "-".to_owned() } else { joined(&row.from, ",") };
    let mut cells = vec![harmless(&row.namespace), harmless(&row.name), from, to];
    if methods {
        cells.push(row.method.map_or("-", Method::as_str).to_owned());
    }
    cells.push(harmless(&row.why));
    cells
}
