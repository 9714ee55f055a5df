//! Prints an audit in Markdown, for the summary of a pipeline or a comment on a change.

use std::fmt::Write as _;

use clusterip_cluster::terminal::harmless;

use super::audit_table::reservation_state;
use super::finding::{Subject, kind_help, kind_name, problem};
use super::plan_table::count;
use crate::audit::model::{Audit, Finding};

/// A table for each sort of pools, then one for each kind of finding, then the notes.
pub fn markdown(audit: &Audit) -> String {
    let mut text = "# Audit of the cluster\n".to_owned();
    if !audit.pools.is_empty() {
        let titles = ["Pool", "Range", "Usable", "Used", "In flight", "Free", "Reserved", "Used anyway"];
        let ranges = audit.pools.iter().flat_map(|pool| pool.ranges.iter().map(move |range| (pool, range)));
        let rows = ranges.map(|(pool, range)| {
            let counts = range.counts;
            let numbers =
                [counts.usable, counts.used, counts.in_flight, counts.free, counts.reserved, counts.used_anyway];
            cells([pool.name.clone(), range.cidr.to_string()], &numbers)
        });
        table(&mut text, "Pools", &titles, 2, rows);
    }
    if !audit.reservations.is_empty() {
        let rows = audit.reservations.iter().map(|reservation| {
            let service = format!("{}/{}", reservation.namespace, reservation.name);
            let since = reservation.since.as_ref().map_or_else(|| "not known".to_owned(), |since| since.0.to_string());
            let state = reservation_state(reservation);
            cells([reservation.address.to_string(), reservation.pool.clone(), service, state, since], &[])
        });
        table(&mut text, "Reservations", &["Address", "Pool", "For", "State", "Since"], 5, rows);
    }
    if let Some(nodes) = &audit.nodes {
        let titles = ["Pool", "Range", "Blocks", "Usable", "Used", "Free", "Withheld", "Used anyway"];
        let ranges = nodes.pools.iter().flat_map(|pool| pool.ranges.iter().map(move |range| (pool, range)));
        let rows = ranges.map(|(pool, range)| {
            let counts = range.counts;
            let numbers = [counts.usable, counts.used, counts.free, counts.withheld, counts.used_anyway];
            cells([pool.name.clone(), range.cidr.to_string(), format!("/{}", range.block_length)], &numbers)
        });
        table(&mut text, "Pools of Nodes", &titles, 3, rows);
    }
    if let Some(external) = &audit.external {
        let titles = ["Pool", "Range", "Held", "Usable", "Used", "In flight", "Free", "Excluded", "Used anyway"];
        let ranges = external.pools.iter().flat_map(|pool| pool.ranges.iter().map(move |range| (pool, range)));
        let rows = ranges.map(|(pool, range)| {
            let counts = range.counts;
            let numbers =
                [counts.usable, counts.used, counts.in_flight, counts.free, counts.excluded, counts.used_anyway];
            let held = counts.held.map_or_else(|| "not known".to_owned(), count);
            cells([pool.name.clone(), range.range.clone(), held], &numbers)
        });
        table(&mut text, "Pools of external addresses", &titles, 2, rows);
    }
    if audit.findings.is_empty() {
        text.push_str("\n## Findings\n\nNothing was found.\n");
    }
    for group in audit.findings.chunk_by(|one, next| one.kind == next.kind) {
        let Some(first) = group.first() else { continue };
        // `write!` to a `String` never fails.
        let title = format!("{} ({}): {}", kind_name(first.kind), group.len(), escaped(&kind_help(first.kind)));
        table(&mut text, &title, &["Object", "Problem", "What to do"], 3, group.iter().map(row));
    }
    if !audit.notes.is_empty() {
        text.push_str("\n## Notes\n\n");
        for note in &audit.notes {
            let _ = writeln!(text, "- {}", escaped(note));
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

fn cells<const N: usize>(texts: [String; N], numbers: &[u128]) -> Vec<String> {
    texts.iter().map(|text| escaped(text)).chain(numbers.iter().copied().map(count)).collect()
}

fn row(finding: &Finding) -> Vec<String> {
    [Subject::of(finding).to_string().as_str(), problem(finding), finding.remedy.as_str()].map(escaped).to_vec()
}

/// A space of no width, which ends a mention, a reference or a URL that Markdown would make a link.
const BREAK: &str = "&#8203;";

/// The text on one line, without any markup, mentions or links.
fn escaped(text: &str) -> String {
    let text = harmless(text);
    let mut markdown = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let (before, rest) = text.split_at(at);
        match c {
            '@' => markdown.extend(["@", BREAK]),
            '#' | '!' if begins_reference(rest) => markdown.extend([c.to_string().as_str(), BREAK]),
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

/// Whether `rest` begins with the mark of a reference to an issue or a change, such as `#1` or `org/repository!1`.
fn begins_reference(rest: &str) -> bool {
    rest.chars().nth(1).is_some_and(|next| next.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_interpreted_as_markup() {
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
            assert_eq!(escaped(text), expected, "{text:?}");
        }
    }
}
