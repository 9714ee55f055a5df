//! Prints an audit for pipelines: as a JUnit report, and in Markdown for summaries and comments.

use std::fmt::Write as _;

use askama::Template;
use clusterip_cluster::harmless_text::harmless;

use super::audit_parts::{HELD, Sort, examined, kind_help, problem, resource, value_name};
use super::audit_table::reservation_state;
use crate::audit::model::{Audit, Finding};
use crate::text::rounded;

#[derive(Template)]
#[template(path = "junit.xml", escape = "none")]
struct Junit<'a> {
    cases: Vec<(String, String, Vec<&'a Finding>)>,
    failures: usize,
    notes: &'a [String],
}

/// A test case for each kind of finding that the audit looked for. It fails if there is a finding of its kind.
pub fn junit(audit: &Audit) -> Result<String, askama::Error> {
    let findings = |kind| audit.findings.iter().filter(|finding| finding.kind == kind).collect::<Vec<_>>();
    let cases = examined(audit).map(|kind| (xml(&value_name(&kind)), xml(&kind_help(kind)), findings(kind)));
    let cases: Vec<_> = cases.collect();
    let failures = cases.iter().filter(|(.., findings)| !findings.is_empty()).count();
    Junit { cases, failures, notes: &audit.notes }.render()
}

/// The text on one line. XML can't contain most control characters, not even escaped, and no noncharacters.
fn xml(text: &str) -> String {
    let escaped = harmless(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&quot;").replace('\'', "&apos;").replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

pub fn markdown(audit: &Audit) -> String {
    let mut text = "# Audit of the cluster\n".to_owned();
    if !audit.pools.is_empty() {
        put_pools(&mut text, audit, Sort::Services);
    }
    if !audit.reservations.is_empty() {
        let rows = audit.reservations.iter().map(|reservation| {
            let service = format!("{}/{}", reservation.namespace, reservation.name);
            let since = reservation.since.as_ref().map_or_else(|| "not known".to_owned(), |since| since.0.to_string());
            let state = reservation_state(reservation);
            [reservation.address.to_string(), reservation.pool.clone(), service, state, since]
                .map(|text| plain(&text))
                .to_vec()
        });
        table(&mut text, "Reservations", &["Address", "Pool", "For", "State", "Since"], 5, rows);
    }
    put_pools(&mut text, audit, Sort::Nodes);
    put_pools(&mut text, audit, Sort::External);
    if audit.findings.is_empty() {
        text.push_str("\n## Findings\n\nNothing was found.\n");
    }
    for group in audit.findings.chunk_by(|one, next| one.kind == next.kind) {
        let Some(first) = group.first() else { continue };
        // `write!` to a `String` never fails.
        let title = format!("{} ({}): {}", value_name(&first.kind), group.len(), plain(&kind_help(first.kind)));
        table(&mut text, &title, &["Object", "Problem", "What to do"], 3, group.iter().map(row));
    }
    if !audit.notes.is_empty() {
        text.push_str("\n## Notes\n\n");
        for note in &audit.notes {
            let _ = writeln!(text, "- {}", plain(note));
        }
    }
    text
}

/// Adds a table. The columns from `left` on contain numbers, which are aligned at the right.
fn table(text: &mut String, title: &str, titles: &[&str], left: usize, rows: impl Iterator<Item = Vec<String>>) {
    let marks: Vec<&str> = (0..titles.len()).map(|column| if column < left { "---" } else { "---:" }).collect();
    let _ = writeln!(text, "\n## {title}\n\n| {} |\n| {} |", titles.join(" | "), marks.join(" | "));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

fn put_pools(text: &mut String, audit: &Audit, sort: Sort) {
    let Some(pools) = sort.pools(audit) else { return };
    let ranges = pools.iter().flat_map(|(pool, ranges)| ranges.iter().map(move |range| (*pool, range)));
    let mut columns = sort.columns();
    columns.sort_by_key(|column| column.title != HELD.title);
    let texts: &[&str] = if sort.has_blocks() { &["Pool", "Range", "Blocks"] } else { &["Pool", "Range"] };
    let titles: Vec<&str> = texts.iter().copied().chain(columns.iter().map(|column| column.title)).collect();
    let rows = ranges.map(|(pool, row)| {
        let blocks = row.block_length.map(|length| format!("/{length}"));
        let texts = [pool.to_owned(), row.range.clone()].into_iter().chain(blocks).map(|text| plain(&text));
        let counts = columns.iter().map(|column| (column.count)(&row.usage));
        texts.chain(counts.map(|count| count.map_or_else(|| "not known".to_owned(), rounded))).collect()
    });
    table(text, sort.title(), &titles, texts.len(), rows);
}

fn row(finding: &Finding) -> Vec<String> {
    [resource(finding).as_str(), problem(finding), finding.remedy.as_str()].map(plain).to_vec()
}

/// A space of no width, which ends a mention, a reference or a URL that Markdown would make a link.
const BREAK: &str = "&#8203;";

fn plain(text: &str) -> String {
    let text = harmless(text);
    let mut markdown = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let (before, rest) = text.split_at(at);
        match c {
            '@' => markdown.extend(["@", BREAK]),
            // A reference to an issue or a change, such as `#1` or `org/repository!1`.
            '#' | '!' if rest.chars().nth(1).is_some_and(|next| next.is_ascii_digit()) => {
                markdown.extend([c.to_string().as_str(), BREAK]);
            }
            ':' if rest.starts_with("://") => markdown.extend([":", BREAK]),
            '.' if before.get(before.len().saturating_sub(3)..).is_some_and(|www| www.eq_ignore_ascii_case("www")) => {
                markdown.extend([BREAK, "."]);
            }
            '&' => markdown.push_str("&amp;"),
            '<' => markdown.push_str("&lt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' => markdown.extend(['\\', c]),
            c => markdown.push(c),
        }
    }
    markdown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_interpreted_as_markdown() {
        let cases = [
            ("kubernetes.io/os=linux (Deployment shop/web)", "kubernetes.io/os=linux (Deployment shop/web)"),
            ("a|b `c` *d* _e_ ~f~", r"a\|b \`c\` \*d\* \_e\_ \~f\~"),
            ("![x](https://example.com)", r"!\[x\](https:&#8203;//example.com)"),
            ("@org/x of a@b.example", "@&#8203;org/x of a@&#8203;b.example"),
            ("see #12, org/x#3 and org/x!4; not #a, !", "see #&#8203;12, org/x#&#8203;3 and org/x!&#8203;4; not #a, !"),
            ("www.example.com", "www&#8203;.example.com"),
            ("WWW.a.example and ü.a", "WWW&#8203;.a.example and ü.a"),
            ("&#8203;", "&amp;#&#8203;8203;"),
            ("<script>&amp;\\", r"&lt;script>&amp;amp;\\"),
            ("two\nlines", r"two\\nlines"),
        ];
        for (text, expected) in cases {
            assert_eq!(plain(text), expected, "{text:?}");
        }
    }

    #[test]
    fn text_is_never_interpreted_as_xml() {
        let cases = [
            ("os=linux (Deployment shop/web)", "os=linux (Deployment shop/web)"),
            ("]]></failure><x y='1'>\"&", "]]&gt;&lt;/failure&gt;&lt;x y=&apos;1&apos;&gt;&quot;&amp;"),
            ("a\u{0}b\u{1b}[31m\n\u{ffff}", "a\\u{0}b\\u{1b}[31m\\n\u{fffd}"),
        ];
        for (text, expected) in cases {
            assert_eq!(xml(text), expected, "{text:?}");
        }
    }
}
