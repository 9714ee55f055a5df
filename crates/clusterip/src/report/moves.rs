//! Prints misplaced Services and their moves, as a table and as JSON.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::style;
use clusterip_core::service_key::ServiceKey;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use thiserror::Error;

use super::columns::{self, Layout, paint};
use crate::text::joined;
use clusterip_moves::method::Method;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    pub namespace: String,
    pub name: String,
    pub from: Vec<IpAddr>,
    /// The addresses that the Service moves to, empty if they are not known yet; `None` if it stays.
    pub to: Option<Vec<IpAddr>>,
    pub why: String,
    #[serde(flatten, serialize_with = "method_and_clients")]
    pub method: Option<Method>,
    pub stays: Option<String>,
    /// Whether the Service stays because no address was found for it or it could not be read.
    #[serde(skip)]
    pub stuck: bool,
    /// `moved` or `failed`; `null` if no move was tried.
    pub outcome: Option<&'static str>,
    pub message: Option<String>,
}

fn method_and_clients<S: Serializer>(method: &Option<Method>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("method", &method.map(Method::as_str))?;
    map.serialize_entry("clients", &method.map(|method| method.to_string()))?;
    map.end()
}

/// With `methods`, also shows how each Service moves, and what its clients notice. The printer strips colours.
pub fn table(rows: &[Row], methods: bool, layout: Layout) -> String {
    let titles: &[&str] = match methods {
        true => &["NAMESPACE", "SERVICE", "FROM", "TO", "METHOD", "WHY"],
        false => &["NAMESPACE", "SERVICE", "FROM", "TO", "WHY"],
    };
    let rows = rows.iter().map(|row| {
        let stays = row.stays.as_ref().map(|why| paint(style::WARNING, &format!("stays: {}", harmless(why))));
        let clients = row.method.filter(|_| methods).map(|method| format!("clients {method}"));
        (cells(row, methods), stays.into_iter().chain(clients).collect())
    });
    columns::sections([columns::table_with_remarks(titles, rows, layout)])
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

pub type Ended = BTreeMap<ServiceKey, Result<String, NotMoved>>;

#[derive(Debug, Error)]
pub enum NotMoved {
    #[error("the command was interrupted before the move began")]
    Interrupted,
    #[error("the command stopped before the move began, because another move failed")]
    Stopped,
    /// The move was tried. Contains its outcome, or what failed.
    #[error("{0}")]
    Tried(String),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    dry_run: bool,
    services: Vec<Row>,
    summary: Summary,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    to_move: usize,
    stay: usize,
    moved: usize,
    failed: usize,
}

pub fn document(rows: &[Row], ended: &Ended, dry_run: bool) -> serde_json::Result<String> {
    let moved = ended.values().filter(|result| result.is_ok()).count();
    let stay = rows.iter().filter(|row| row.stays.is_some()).count();
    let summary = Summary { to_move: rows.len() - stay, stay, moved, failed: ended.len() - moved };
    let service = |row: &Row| {
        let (outcome, message) = match ended.get(&ServiceKey::new(&row.namespace, &row.name)) {
            Some(Ok(text)) => (Some("moved"), Some(text.clone())),
            Some(Err(reason)) => (Some("failed"), Some(reason.to_string())),
            None => (None, None),
        };
        Row { outcome, message, ..row.clone() }
    };
    super::json(&Document { dry_run, services: rows.iter().map(service).collect(), summary })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn document_shows_every_service_with_the_result_of_its_move() {
        let row = |name: &str, to: Option<&str>, stays: Option<&str>| Row {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            from: vec!["172.21.0.9".parse().unwrap()],
            to: to.map(|to| vec![to.parse().unwrap()]),
            why: "it lies in no pool".to_owned(),
            stays: stays.map(str::to_owned),
            method: to.map(|_| Method::Plain("notice nothing: no endpoint is ready")),
            ..Row::default()
        };
        let rows = [
            row("done", Some("172.21.1.4"), None),
            row("failed", Some("172.21.1.5"), None),
            row("stays", None, Some("by hand")),
        ];
        let key = |name: &str| ServiceKey::new("shop", name);
        let not_moved = NotMoved::Tried("no".to_owned());
        let ended = Ended::from([(key("done"), Ok("moved".to_owned())), (key("failed"), Err(not_moved))]);
        let service = |name: &str, to: Value, stays: Value, outcome: Value, message: Value| {
            json!({
                "namespace": "shop", "name": name, "from": ["172.21.0.9"], "to": to, "why": "it lies in no pool",
                "method": if to.is_null() { json!(null) } else { json!("plain") },
                "clients": if to.is_null() { json!(null) } else { json!("notice nothing: no endpoint is ready") },
                "stays": stays, "outcome": outcome, "message": message,
            })
        };
        let expected = json!({
            "dryRun": false,
            "services": [
                service("done", json!(["172.21.1.4"]), json!(null), json!("moved"), json!("moved")),
                service("failed", json!(["172.21.1.5"]), json!(null), json!("failed"), json!("no")),
                service("stays", json!(null), json!("by hand"), json!(null), json!(null)),
            ],
            "summary": {"toMove": 2, "stay": 1, "moved": 1, "failed": 1},
        });
        let document: Value = serde_json::from_str(&document(&rows, &ended, false).unwrap()).unwrap();
        assert_eq!(document, expected);
    }
}
