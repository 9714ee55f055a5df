//! The map of an audit: a single HTML page that loads no other file.

use std::sync::LazyLock;
use std::{fmt, iter};

use anyhow::Context;
use askama::Template;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_cluster::harmless_text::harmless_json;
use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::audit_parts::{RangeRow, Sort};
use crate::audit::model::Audit;
use crate::text::{grouped, joined, thousandths};

#[derive(Template)]
#[template(path = "map/page.html")]
struct Page<'a> {
    title: String,
    about: String,
    tables: &'a [PoolTable<'a>],
    pools: Vec<&'a Pool<'a>>,
    findings: String,
    audit: &'a Audit,
    json: String,
}

/// The page loads nothing, sends nothing, and contains the audit as JSON. The same audit and [`About`] give the same bytes.
pub fn page(audit: &Audit, about: &About) -> anyhow::Result<String> {
    let tables = tables(audit);
    let of_nodes = audit.nodes.as_ref().map(|_| "blocks of Nodes");
    let of_external = audit.external.as_ref().map(|_| "external addresses");
    let page = Page {
        title: joined(iter::once("Addresses of Services").chain(of_nodes).chain(of_external), ", "),
        about: about.to_string(),
        tables: &tables,
        pools: tables.iter().flat_map(|table| &table.pools).collect(),
        findings: match audit.findings.len() {
            0 => "There are none.".to_owned(),
            1 => "1 finding.".to_owned(),
            many => format!("{} findings.", grouped(many as u128)),
        },
        audit,
        // JSON that can't end the HTML element around it: in JSON, `<` occurs only in strings. Anyone who may create a
        // workload chooses text in it, such as labels and evidence.
        json: harmless_json(serde_json::to_string(audit).context("the map can't be written")?).replace('<', "\\u003c"),
    };
    // A pipeline that prints the page may run commands after `##`. Style and script have none.
    Ok(page.render().context("the map can't be written")?.replace("##", "#&#35;"))
}

const STYLE: &str = include_str!("../../templates/map/map.css");

/// The contents of the script: its files, each after those that it depends on.
const SCRIPT: &str = concat!(
    "\n",
    include_str!("../../templates/map/address.js"),
    include_str!("../../templates/map/words.js"),
    include_str!("../../templates/map/range.js"),
    include_str!("../../templates/map/card.js"),
    include_str!("../../templates/map/grid.js"),
    include_str!("../../templates/map/search.js"),
    include_str!("../../templates/map/findings.js"),
    include_str!("../../templates/map/place.js"),
    include_str!("../../templates/map/main.js"),
);

/// It allows the page's own style and script, by their hashes. The page has it, and the header of a served page.
pub fn content_security_policy() -> &'static str {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'; \
             require-trusted-types-for 'script'; trusted-types 'none'",
            hash(SCRIPT),
            hash(STYLE)
        )
    });
    &POLICY
}

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

/// Where the contents of a map come from. Unknown fields are not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The context and the API server of the cluster, or the snapshot.
    pub cluster: Option<String>,
    pub made: Option<Timestamp>,
    pub settings: Option<String>,
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cluster = self.cluster.as_ref().map(|cluster| format!("Cluster: {cluster}"));
        let made = self.made.map(|made| format!("Audited: {}", made.strftime("%Y-%m-%d %H:%M:%S UTC")));
        let settings = self.settings.as_ref().map(|settings| format!("Settings: {settings}"));
        let parts: Vec<String> = [cluster, made, settings].into_iter().flatten().collect();
        f.write_str(&parts.join(" · "))
    }
}

struct PoolTable<'a> {
    sort: Sort,
    columns: Vec<&'static str>,
    pools: Vec<Pool<'a>>,
}

struct Pool<'a> {
    name: &'a str,
    /// The title of the pool's section: a pool of Services and one of Nodes may have the same name.
    title: String,
    ranges: Vec<Range>,
}

struct Range {
    number: usize,
    cidr: String,
    block_length: Option<u8>,
    share: String,
    /// The parts of the bar, in percent.
    used: String,
    in_flight: String,
    counts: Vec<String>,
}

fn tables<'a>(audit: &'a Audit) -> Vec<PoolTable<'a>> {
    let mut numbers = 0..;
    let mut table = |sort: Sort| {
        let mut columns = sort.columns();
        // The number of usable addresses stands behind that of free ones.
        let behind = columns.len() - 2;
        columns[..behind].rotate_left(1);
        let count = |count: Option<u128>| count.map_or_else(|| "not known".to_owned(), grouped);
        let mut range = |RangeRow { range, block_length, usage, misplaced }: RangeRow| {
            let taken = thousandths(usage.used.saturating_add(usage.in_flight), usage.usable);
            let used = thousandths(usage.used, usage.usable).min(taken);
            let counts = columns.iter().map(|column| count((column.count)(&usage)));
            Range {
                number: numbers.next().unwrap_or_default(),
                cidr: range,
                block_length,
                share: match (taken, usage.usable) {
                    (_, 0) => "none usable".to_owned(),
                    (0, _) => "empty".to_owned(),
                    (1..10, _) => "< 1 %".to_owned(),
                    (1000, _) => "full".to_owned(),
                    _ => format!("{} %", taken / 10),
                },
                used: percent(used),
                in_flight: percent(taken - used),
                counts: counts.chain([grouped(misplaced)]).collect(),
            }
        };
        let pools = sort.pools(audit)?.into_iter().map(|(name, ranges)| Pool {
            name,
            title: format!("{name}{}", ["", ": blocks of Nodes", ": external addresses"][sort as usize]),
            ranges: ranges.into_iter().map(&mut range).collect(),
        });
        let pools = pools.collect();
        let columns = columns.iter().map(|column| column.title).chain(["Misplaced"]).collect();
        Some(PoolTable { sort, columns, pools })
    };
    Sort::ALL.into_iter().filter_map(&mut table).collect()
}

fn percent(thousandths: u32) -> String {
    format!("{}.{}", thousandths / 10, thousandths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_shown() {
        let all = About {
            cluster: Some("prod (https://10.0.0.1:6443)".to_owned()),
            made: Some(Timestamp::UNIX_EPOCH),
            settings: Some("settings.yaml".to_owned()),
        };
        let expected =
            "Cluster: prod (https://10.0.0.1:6443) · Audited: 1970-01-01 00:00:00 UTC · Settings: settings.yaml";
        assert_eq!(all.to_string(), expected);
        assert_eq!(About { cluster: None, made: None, ..all }.to_string(), "Settings: settings.yaml");
        assert_eq!(About::default().to_string(), "");
    }
}
