//! Prints an audit as a JUnit report, which pipelines show as tests.

use std::fmt::Write as _;

use clusterip_cluster::terminal::harmless;

use super::finding::{examined, kind_help, kind_name};
use crate::audit::model::{Audit, Finding};

/// A test case for each kind of finding that the audit looked for. It fails if there is a finding of its kind.
pub fn junit(audit: &Audit) -> String {
    let (mut cases, mut tests, mut failures) = (String::new(), 0, 0);
    for kind in examined(audit) {
        let findings: Vec<&Finding> = audit.findings.iter().filter(|finding| finding.kind == kind).collect();
        let name = escaped(&kind_name(kind));
        tests += 1;
        if findings.is_empty() {
            // `write!` to a `String` never fails.
            let _ = writeln!(cases, "    <testcase classname=\"clusterip.audit\" name=\"{name}\"/>");
            continue;
        }
        failures += 1;
        let message = escaped(&format!("{} ({})", kind_help(kind), findings.len()));
        let _ = writeln!(cases, "    <testcase classname=\"clusterip.audit\" name=\"{name}\">");
        let _ = writeln!(cases, "      <failure type=\"{name}\" message=\"{message}\">");
        for finding in findings {
            let _ = writeln!(cases, "{}", escaped(&finding.message));
            let _ = writeln!(cases, "  =&gt; {}", escaped(&finding.remedy));
        }
        cases.push_str("      </failure>\n    </testcase>\n");
    }
    let counts = format!("name=\"clusterip audit\" tests=\"{tests}\" failures=\"{failures}\"");
    let mut report = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {counts}>\n  <testsuite {counts} errors=\"0\">\n{cases}"
    );
    if !audit.notes.is_empty() {
        report.push_str("    <system-out>\n");
        for note in &audit.notes {
            let _ = writeln!(report, "note: {}", escaped(note));
        }
        report.push_str("    </system-out>\n");
    }
    report.push_str("  </testsuite>\n</testsuites>\n");
    report
}

/// The text on one line as XML, for elements and attributes. XML can't contain most control characters, not even
/// escaped, and no noncharacters.
fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for c in harmless(text).chars() {
        match c {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            '\'' => xml.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => xml.push(char::REPLACEMENT_CHARACTER),
            c => xml.push(c),
        }
    }
    xml
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_never_interpreted_as_markup() {
        let cases = [
            ("os=linux (Deployment shop/web)", "os=linux (Deployment shop/web)"),
            ("]]></failure><x y='1'>\"&", "]]&gt;&lt;/failure&gt;&lt;x y=&apos;1&apos;&gt;&quot;&amp;"),
            ("a\u{0}b\u{1b}[31m\n\u{ffff}", "a\\u{0}b\\u{1b}[31m\\n\u{fffd}"),
        ];
        for (text, expected) in cases {
            assert_eq!(escaped(text), expected, "{text:?}");
        }
    }
}
