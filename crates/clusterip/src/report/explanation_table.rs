//! Prints the explanation of one Service.

use clusterip_cluster::style;
use clusterip_cluster::terminal::harmless;
use clusterip_core::decision::Report;

use super::columns::{self, Layout, paint};
use crate::audit::explain::{AddressLocation, Explanation};
use crate::audit::model::{ExternalAddress, Holder, WithheldReason};

/// Lines of a key and a value. The text has colours; the printer strips them where they don't belong.
pub fn why(why: &Explanation, layout: Layout) -> String {
    let mut rows: Vec<(&str, String)> = vec![("service", harmless(&format!("{}/{}", why.namespace, why.name)))];
    if why.addresses.is_empty() {
        rows.push(("address", paint(style::FAINT, "none")));
    }
    rows.extend(why.addresses.iter().map(|location| ("address", self::location(location))));
    // Without an address, nothing was set.
    if !why.addresses.is_empty() {
        rows.push(("set", set_by(why.by_hand).to_owned()));
    }
    let decision = why.decision.name();
    let reason = why.reason.as_ref().map(|reason| format!(": {}", harmless(reason))).unwrap_or_default();
    rows.push(("decision", format!("{decision}{reason}")));
    rows.push(("belongs to", why.pool.as_deref().map_or_else(|| paint(style::FAINT, "no pool"), pool)));
    rows.push(("evidence", why.evidence.as_ref().map_or_else(|| paint(style::FAINT, "none"), evidence)));
    for asked in &why.asked {
        let found = if asked.found == 0 { paint(style::FAINT, "0 found") } else { format!("{} found", asked.found) };
        rows.push(("asked", format!("{}: {found}", harmless(&asked.what))));
    }
    rows.extend(why.warnings.iter().map(|warning| ("warning", paint(style::WARNING, &harmless(warning)))));
    rows.extend(why.external.iter().map(|address| ("external", external(address))));
    for finding in &why.findings {
        rows.push(("finding", paint(style::ERROR, &harmless(&finding.message))));
        rows.push(("", paint(style::FAINT, &format!("=> {}", harmless(&finding.remedy)))));
    }
    rows.push(("move", format!("`clusterip move` {}", harmless(&why.moves))));
    let mut before = "";
    let cells = rows.into_iter().map(|(key, text)| {
        let title = if key == before { String::new() } else { paint(style::HEAD, key) };
        before = key;
        vec![title, text]
    });
    let mut text = columns::lines(cells, 0, layout).join("\n");
    text.push('\n');
    text
}

fn set_by(by_hand: Option<bool>) -> &'static str {
    match by_hand {
        Some(true) => "by hand: `metadata.managedFields` names the owner",
        Some(false) => "by the policy or by Kubernetes: no field manager owns it",
        None => "unknown: the Service has no `metadata.managedFields`",
    }
}

fn pool(name: &str) -> String {
    format!("pool {}", harmless(name))
}

fn location(location: &AddressLocation) -> String {
    let withheld = match location.withheld {
        Some(WithheldReason::Reserved) => ", reserved",
        Some(WithheldReason::Excluded) => ", excluded",
        Some(WithheldReason::ForService) => ", reserved for a Service",
        None => "",
    };
    match (&location.pool, location.range) {
        (Some(pool), Some(range)) => format!("{}, in pool {} ({range}){withheld}", location.address, harmless(pool)),
        _ => format!("{}, in no pool", location.address),
    }
}

/// An external address, with the node that holds it if known.
fn external(ExternalAddress { address, holder, .. }: &ExternalAddress) -> String {
    match holder {
        None => address.to_string(),
        Some(Holder { node, renewed: true }) => format!("{address}, held by node {}", harmless(node)),
        Some(Holder { node, renewed: false }) => {
            format!("{address}, held by node {}, whose agent does not renew its heartbeat", harmless(node))
        }
    }
}

fn evidence(report: &Report) -> String {
    let labels: Vec<String> = report.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let text = match labels.is_empty() {
        true => report.source.clone(),
        false => format!("{} ({})", labels.join(", "), report.source),
    };
    harmless(&text)
}
