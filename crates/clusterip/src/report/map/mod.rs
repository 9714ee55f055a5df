//! The map of an audit: a single HTML page that loads no other file.

mod about;
mod assets;
mod embedded;
mod number;
mod pools;

use askama::Template;
use thiserror::Error;

use crate::audit::model::Audit;

pub use about::About;
pub use assets::content_security_policy;

/// The page can't be rendered.
#[derive(Debug, Error)]
pub enum PageError {
    /// The audit can't be serialized as JSON.
    #[error("the map can't be written: the audit as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The template failed.
    #[error("the map can't be written: {0}")]
    Template(#[from] askama::Error),
}

#[derive(Template)]
#[template(path = "map/page.html")]
struct Page<'a> {
    policy: &'a str,
    style: &'a str,
    script: &'a str,
    title: &'a str,
    about: Option<&'a About>,
    states: &'a [StateName],
    pools: pools::Pools<'a>,
    findings: usize,
    findings_text: String,
    notes: &'a [String],
    audit: String,
}

/// A state of an address or block: its class in the style sheet, and its name for readers.
struct StateName {
    class: &'static str,
    name: &'static str,
}

/// The states of the legend. `excluded` is the name of the last state, which also covers withheld blocks if there
/// are Nodes.
const fn states(excluded: &'static str) -> [StateName; 6] {
    [
        StateName { class: "free", name: "free" },
        StateName { class: "used", name: "used" },
        StateName { class: "misplaced", name: "misplaced" },
        StateName { class: "in-flight", name: "in flight" },
        StateName { class: "reserved", name: "reserved" },
        StateName { class: "excluded", name: excluded },
    ]
}

/// A self-contained page: the pools with their fill, the findings, and every range as a grid of its addresses or
/// blocks.
///
/// The page loads nothing, sends nothing, and contains the audit as JSON. The same audit and [`About`] give the same
/// bytes.
///
/// # Errors
/// If the audit can't be serialized or the template fails.
pub fn page(audit: &Audit, about: &About) -> Result<String, PageError> {
    let findings = audit.findings.len();
    let with_nodes = audit.nodes.is_some();
    let page = Page {
        policy: content_security_policy(),
        style: assets::STYLE,
        script: assets::SCRIPT,
        title: match (with_nodes, audit.external.is_some()) {
            (false, false) => "Addresses of Services",
            (true, false) => "Addresses of Services, blocks of Nodes",
            (false, true) => "Addresses of Services, external addresses",
            (true, true) => "Addresses of Services, blocks of Nodes, external addresses",
        },
        about: Some(about).filter(|about| !about.is_empty()),
        states: &states(if with_nodes { "excluded or withheld" } else { "excluded" }),
        pools: pools::pools(audit),
        findings,
        findings_text: match findings {
            1 => "1 finding.".to_owned(),
            many => format!("{} findings.", number::grouped(many as u128)),
        },
        notes: &audit.notes,
        audit: embedded::json(audit)?,
    };
    Ok(page.render()?)
}
