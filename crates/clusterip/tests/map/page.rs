//! The page of the map.

use clusterip::audit::model::{Audit, Pool};
use clusterip::report::map::{self, About};
use serde_json::Value;

use crate::audits;

fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text.split_once(begin).unwrap_or_else(|| panic!("{begin} is not there"));
    rest.split_once(end).unwrap_or_else(|| panic!("{end} is not there")).0
}

#[test]
fn page_contains_the_whole_audit() {
    for (name, audit) in audits::all() {
        let page = map::page(&audit, &About::default()).unwrap();
        let data = between(&page, "<script type=\"application/json\" id=\"audit\">", "</script>");
        let found: Value = serde_json::from_str(data).unwrap();
        // Compared as text, because numbers may be larger than a `Value` can hold.
        let expected: Value = serde_json::from_str(&serde_json::to_string(&audit).unwrap()).unwrap();
        assert!(found == expected, "{name}");
        assert_eq!(page, map::page(&audit, &About::default()).unwrap(), "{name}");
    }
}

#[test]
fn text_is_never_interpreted_as_markup() {
    let mut audit = audits::small();
    let tags = |page: &str| page.matches('<').count();
    // The occurrences of `<` in the script and the style sheet are the same in all pages.
    let plain = tags(&map::page(&audit, &About::default()).unwrap());
    for hostile in [audits::HOSTILE, "</script>", "<!--<script>", "</style><b>", "]]>", "\"><i>", "&lt;", "{{ 7 * 7 }}"]
    {
        audit.pools[0].name = hostile.to_owned();
        audit.findings[0].message = hostile.to_owned();
        let address = &mut audit.pools[1].ranges[0].addresses[0];
        (address.namespace, address.name) = (hostile.to_owned(), hostile.to_owned());
        address.evidence = Some(hostile.to_owned());
        let page = map::page(&audit, &About::default()).unwrap();
        assert_eq!(tags(&page), plain, "{hostile}");
        let data = between(&page, "id=\"audit\">", "</script>");
        let found: Value = serde_json::from_str(data).unwrap();
        assert_eq!(found["pools"][1]["ranges"][0]["addresses"][0]["evidence"], hostile);
    }
}

#[test]
fn page_is_self_contained() {
    let page = map::page(&audits::small(), &About::default()).unwrap();
    for outside in ["http:", "https:", "src=\"", "url(", "@import", "<link", "import(", "fetch(", "innerHTML", "eval("]
    {
        assert!(!page.contains(outside), "{outside}");
    }
    let policy = between(&page, "Content-Security-Policy\" content=\"", "\"").replace("&#39;", "'");
    assert_eq!(policy, map::content_security_policy());
    let names: Vec<&str> = policy.split("; ").map(|part| part.split("sha256-").next().unwrap()).collect();
    let expected = [
        "default-src 'none'",
        "script-src '",
        "style-src '",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ];
    assert_eq!(names, expected);
}

#[test]
fn pool_table_shows_usage() {
    let rows = [
        (
            audits::small(),
            vec![
                "windows 172.21.1.0/24 1 % 2 0 195 197 50 0 0",
                "linux 172.21.0.0/24 21 % 44 1 160 205 50 2 2",
                "edge 172.21.2.48/28 full 15 0 0 15 0 0 0",
            ],
        ),
        (
            audits::huge(),
            vec![
                "dual 10.1.0.0/20 < 1 % 1 0 4,085 4,086 10 0 0",
                "dual fd00:1::/112 < 1 % 298 0 64,726 65,024 512 2 0",
                "few fd00:2::/64 < 1 % 12 0 1.8 × 10^19 1.8 × 10^19 0 0 0",
                "scattered fd00:3::/64 < 1 % 5,000 0 1.8 × 10^19 1.8 × 10^19 281,474,976,710,656 0 0",
            ],
        ),
        (Audit { pools: vec![Pool { name: "bare".to_owned(), ranges: Vec::new() }], ..Audit::default() }, Vec::new()),
    ];
    for (audit, expected) in rows {
        let page = map::page(&audit, &About::default()).unwrap();
        let body = between(&page, "<tbody>", "</tbody>");
        let found: Vec<String> = body.split("</tr>").map(text).filter(|row| !row.is_empty()).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn node_table_counts_a_block_of_several_nodes_once() {
    let page = map::page(&audits::nodes(), &About::default()).unwrap();
    let section = between(&page, "<h2 id=\"node-pools-title\">", "</section>");
    let rows: Vec<String> =
        between(section, "<tbody>", "</tbody>").split("</tr>").map(text).filter(|row| !row.is_empty()).collect();
    assert_eq!(rows[0], "linux 172.20.0.0/18 /24 29 % 17 41 58 6 0 3");
}

#[test]
fn page_names_its_cluster_time_and_settings() {
    let about = About {
        cluster: Some("prod (https://10.0.0.1:6443)".to_owned()),
        made: Some("2026-01-02T03:04:05Z".parse().unwrap()),
        settings: Some("<i>ClusterAdmissionPolicy clusterip".to_owned()),
    };
    let page = map::page(&audits::small(), &about).unwrap();
    let line = between(&page, "<p class=\"about\">", "</p>");
    let expected = "Cluster: prod (https://10.0.0.1:6443) · Audited: 2026-01-02 03:04:05 UTC · \
                    Settings: &#60;i&#62;ClusterAdmissionPolicy clusterip";
    assert_eq!(line, expected);
    let page = map::page(&audits::small(), &About::default()).unwrap();
    assert!(!page.contains("class=\"about\""), "nothing is known");
}

/// The text between the tags.
fn text(row: &str) -> String {
    let parts = row.split('<').map(|part| part.split_once('>').map_or(part, |(_, text)| text));
    let parts: Vec<&str> = parts.map(str::trim).filter(|part| !part.is_empty()).collect();
    parts.join(" ").replace("&#60;", "<")
}
