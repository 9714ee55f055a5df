//! Prints an audit, and the explanation of one Service, as a table.

use std::fmt::Write as _;

use clap::ValueEnum;
use clusterip_api::ReservationHolder;
use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::style;
use clusterip_core::address::Withholding;

use super::audit_parts::{
    Column, RangeRow, Sort, belongs_to, colour, evidence, kind_help, places, problem, resource, subject, value_name,
};
use super::columns::{self, Layout, paint};
use crate::audit::explain::{AddressLocation, Explanation};
use crate::audit::model::{Audit, ExternalAddress, Finding, Holder, Kind, Reservation};
use crate::text::{rounded, several};
use crate::usage::Usage;

const BAR: usize = 20;
const NEARLY_FULL: u128 = 90;

/// The pools with their fill, the findings by kind, the notes and the totals. The printer strips colours.
pub fn audit(audit: &Audit, layout: Layout) -> String {
    document(audit, groups(&audit.findings, layout), layout)
}

/// As [`audit()`], but with a single line for each finding, which has more columns and is never folded.
pub fn wide(audit: &Audit, layout: Layout) -> String {
    let layout = Layout { width: None, ..layout };
    let titles = ["KIND", "OBJECT", "ADDRESSES", "BELONGS TO", "EVIDENCE", "PROBLEM"];
    let table =
        (!audit.findings.is_empty()).then(|| columns::table(&titles, audit.findings.iter().map(wide_row), layout));
    document(audit, table.into_iter().collect(), layout)
}

fn document(audit: &Audit, findings: Vec<Vec<String>>, layout: Layout) -> String {
    let mut sections = Vec::new();
    // If the settings have only node pools or external pools, the table of Service pools is left out.
    if (audit.nodes.is_none() && audit.external.is_none()) || !audit.pools.is_empty() {
        sections.push(pools(audit, Sort::Services, layout));
    }
    sections.push(reservations(&audit.reservations, layout));
    sections.extend([Sort::Nodes, Sort::External].map(|sort| pools(audit, sort, layout)));
    sections.extend(findings);
    let note = |note: &String| paint(style::WARNING, &format!("note: {}", harmless(note)));
    sections.push(audit.notes.iter().map(|text| columns::paragraph(&note(text), 0, 6, layout)).collect());
    sections.push(vec![columns::paragraph(&totals(audit), 0, 2, layout)]);
    columns::sections(sections)
}

fn pools(audit: &Audit, sort: Sort, layout: Layout) -> Vec<String> {
    let Some(pools) = sort.pools(audit) else { return Vec::new() };
    let columns = sort.columns();
    let titles = [sort.name().replace('-', " "), "Range".to_owned()].into_iter();
    let titles = titles.chain(sort.has_blocks().then(|| "Blocks".to_owned()));
    let titles = titles.chain(columns.iter().map(|column| column.title.to_owned())).chain(["Fill".to_owned()]);
    let titles: Vec<String> = titles.map(|title| title.to_uppercase()).collect();
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    let count = |column: &Column, usage: &Usage| match (column.count)(usage) {
        Some(0) => paint(column.zero, "0"),
        Some(count) => rounded(count),
        // An unknown number is not zero.
        None => paint(style::FAINT, "?"),
    };
    let cells = |pool: &str, RangeRow { range, block_length, usage, .. }: &RangeRow, bar: usize| {
        let blocks = block_length.map(|length| format!("/{length}"));
        let counts = columns.iter().map(|column| count(column, usage)).chain([fill(usage, bar)]);
        [harmless(pool), range.clone()].into_iter().chain(blocks).chain(counts).collect()
    };
    let rows = |bar| {
        let ranges = pools.iter().flat_map(|(pool, ranges)| ranges.iter().map(move |range| (pool, range)));
        layout.head(&titles).into_iter().chain(ranges.map(|(pool, range)| cells(pool, range, bar))).collect()
    };
    columns::lines_with_bar(rows, BAR, layout)
}

fn reservations(reservations: &[Reservation], layout: Layout) -> Vec<String> {
    if reservations.is_empty() {
        return Vec::new();
    }
    let with_time = reservations.iter().any(|reservation| reservation.since.is_some());
    let columns = if with_time { 5 } else { 4 };
    let cells = |reservation: &Reservation| {
        let state = harmless(&reservation_state(reservation));
        let since = reservation.since.as_ref();
        let mut cells = vec![
            reservation.address.to_string(),
            harmless(&reservation.pool),
            harmless(&format!("{}/{}", reservation.namespace, reservation.name)),
            if reservation.state == ReservationHolder::Other { paint(style::WARNING, &state) } else { state },
            since.map_or_else(|| paint(style::FAINT, "-"), |since| since.0.to_string()),
        ];
        cells.truncate(columns);
        cells
    };
    let titles = &["RESERVED", "POOL", "FOR", "STATE", "SINCE"][..columns];
    columns::table(titles, reservations.iter().map(cells), layout)
}

pub(super) fn reservation_state(reservation: &Reservation) -> String {
    match (reservation.state, &reservation.taken_by) {
        (ReservationHolder::Owner, _) => "held".to_owned(),
        (ReservationHolder::Nobody, _) => "free".to_owned(),
        (ReservationHolder::Other, Some(service)) => format!("taken by {service}"),
        (ReservationHolder::Other, None) => "taken by an IPAddress object without its Service".to_owned(),
    }
}

/// A bar of this length such as `######..............  31 %`: the used and in-flight share of the usable addresses. It is
/// empty only if no address is taken, and complete only if no address is free.
fn fill(&Usage { usable, used, in_flight, free, .. }: &Usage, bar: usize) -> String {
    let taken = used.saturating_add(in_flight);
    let part = |whole: u128| match taken.checked_mul(whole) {
        Some(product) => product.checked_div(usable).unwrap_or(whole),
        None => taken / (usable / whole).max(1),
    };
    let number = format!("{:>3} %", part(100));
    let Some(all_but_one) = (bar as u128).checked_sub(1) else { return number };
    let long = part(bar as u128).clamp(u128::from(taken > 0), if free > 0 { all_but_one } else { bar as u128 });
    let filled = usize::try_from(long).unwrap_or_default();
    let style = match part(100) {
        _ if free == 0 => style::ERROR,
        parts if parts >= NEARLY_FULL => style::WARNING,
        _ => style::GOOD,
    };
    let empty = bar.saturating_sub(filled);
    format!("{}{} {number}", paint(style, &"#".repeat(filled)), paint(style::FAINT, &".".repeat(empty)))
}

/// A group for each kind of these findings, which are sorted by kind.
pub(super) fn groups(findings: &[Finding], layout: Layout) -> Vec<Vec<String>> {
    findings.chunk_by(|one, next| one.kind == next.kind).map(|group| lines_of_group(group, layout)).collect()
}

/// The findings of one kind; findings with the same remedy stand together, and the remedy below them.
fn lines_of_group(findings: &[Finding], layout: Layout) -> Vec<String> {
    let Some(Finding { kind, .. }) = findings.first() else { return Vec::new() };
    let title = paint(colour(*kind), &format!("{} ({}):", value_name(kind), findings.len()));
    let mut text = vec![columns::paragraph(&format!("{title} {}", kind_help(*kind)), 0, 2, layout)];
    let mut ways: Vec<(&str, Vec<Vec<String>>)> = Vec::new();
    for finding in findings {
        match ways.iter_mut().find(|(way, _)| *way == finding.remedy) {
            Some((_, rows)) => rows.push(row(finding)),
            None => ways.push((&finding.remedy, vec![row(finding)])),
        }
    }
    // All findings of the kind share the same columns.
    let rows = ways.iter().flat_map(|(_, rows)| rows).cloned();
    let mut lines = columns::lines(rows, 2, layout).into_iter();
    for (way, rows) in &ways {
        text.extend(lines.by_ref().take(rows.len()));
        let way = paint(style::FAINT, &format!("=> {}", harmless(way)));
        text.push(columns::paragraph(&way, 2, 5, layout));
    }
    text
}

fn wide_row(finding: &Finding) -> Vec<String> {
    let faint = || paint(style::FAINT, "-");
    let places = places(finding);
    let kind = paint(colour(finding.kind), &value_name(&finding.kind));
    let problem = row(finding).pop().unwrap_or_default();
    vec![
        kind,
        harmless(&resource(finding)),
        if places.is_empty() { faint() } else { places.join(",") },
        belongs_to(finding).map_or_else(faint, harmless),
        finding.evidence.as_deref().map_or_else(faint, harmless),
        problem,
    ]
}

/// The object, its addresses or blocks, and the problem. A message about another object names it.
fn row(finding: &Finding) -> Vec<String> {
    let (kind, object) = subject(finding);
    if !matches!(kind, "Service" | "Node") {
        return vec![harmless(&finding.message)];
    }
    let places = places(finding);
    let places = if places.is_empty() { "-".to_owned() } else { places.join(",") };
    let message = problem(finding);
    let message = message.strip_prefix(&format!("{places} ")).unwrap_or(message);
    vec![harmless(&object), places, harmless(message)]
}

fn totals(audit: &Audit) -> String {
    let mut services = several(audit.services, "Service");
    if let Some(nodes) = &audit.nodes {
        let _ = write!(services, ", {}", several(nodes.count, "Node"));
        if nodes.with_blocks < nodes.count {
            let _ = write!(services, " ({} with blocks)", nodes.with_blocks);
        }
    }
    if let Some(external) = &audit.external {
        let _ = write!(services, ", {} with external addresses", external.count);
    }
    if audit.findings.is_empty() {
        return format!("{services}, {}", paint(style::GOOD, "nothing found"));
    }
    let count = |kind: Kind| audit.findings.iter().filter(|finding| finding.kind == kind).count();
    let kinds = Kind::value_variants().iter().map(|kind| (count(*kind), value_name(kind)));
    let counts: Vec<String> =
        kinds.filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
    format!("{services}, {}: {}", several(audit.findings.len(), "finding"), counts.join(", "))
}

/// Lines of a key and a value. The text has colours; the printer strips them where they don't belong.
pub fn why(why: &Explanation, layout: Layout) -> String {
    let mut rows: Vec<(&str, String)> = vec![("service", harmless(&format!("{}/{}", why.namespace, why.name)))];
    if why.addresses.is_empty() {
        rows.push(("address", paint(style::FAINT, "none")));
    }
    rows.extend(why.addresses.iter().map(|location| ("address", self::location(location))));
    // Without an address, nothing was set.
    if !why.addresses.is_empty() {
        let by = match why.by_hand {
            Some(true) => "by hand: `metadata.managedFields` names the owner",
            Some(false) => "by the policy or by Kubernetes: no field manager owns it",
            None => "unknown: the Service has no `metadata.managedFields`",
        };
        rows.push(("set", by.to_owned()));
    }
    let decision = why.decision.name();
    let reason = why.reason.as_ref().map(|reason| format!(": {}", harmless(reason))).unwrap_or_default();
    rows.push(("decision", format!("{decision}{reason}")));
    let pool = why.pool.as_ref().map(|pool| format!("pool {}", harmless(pool)));
    rows.push(("belongs to", pool.unwrap_or_else(|| paint(style::FAINT, "no pool"))));
    let shown = |report| harmless(&evidence(report, str::to_owned));
    rows.push(("evidence", why.evidence.as_ref().map_or_else(|| paint(style::FAINT, "none"), shown)));
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
    columns::sections([columns::lines(cells, 0, layout)])
}

fn location(location: &AddressLocation) -> String {
    let withheld = match location.withheld {
        Some(Withholding::ByHand) => ", reserved",
        Some(Withholding::Excluded) => ", excluded",
        Some(Withholding::ForService) => ", reserved for a Service",
        None => "",
    };
    match (&location.pool, location.range) {
        (Some(pool), Some(range)) => format!("{}, in pool {} ({range}){withheld}", location.address, harmless(pool)),
        _ => format!("{}, in no pool", location.address),
    }
}

fn external(ExternalAddress { address, holder, .. }: &ExternalAddress) -> String {
    match holder {
        None => address.to_string(),
        Some(Holder { node, renewed: true }) => format!("{address}, held by node {}", harmless(node)),
        Some(Holder { node, renewed: false }) => {
            format!("{address}, held by node {}, whose agent does not renew its heartbeat", harmless(node))
        }
    }
}
