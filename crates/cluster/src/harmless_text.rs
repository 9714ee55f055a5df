//! Escapes text from files and clusters before it is printed to a terminal or to the log of a pipeline.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::mem;

/// The text on one line, with every character escaped that would control the terminal, the layout, the reading
/// direction or a pipeline.
pub fn harmless(text: &str) -> String {
    escaped(text, |shown, c| match c {
        '#' | ':' => shown.extend(c.escape_unicode()),
        c => shown.extend(c.escape_default()),
    })
}

pub fn harmless_lines(text: &str) -> String {
    text.split('\n').map(harmless).collect::<Vec<_>>().join("\n")
}

/// The same JSON with these characters escaped: they occur only in its strings, except for line breaks, which stay.
pub fn harmless_json(json: String) -> String {
    if json.split('\n').all(is_plain) {
        return json;
    }
    let line = |line| {
        escaped(line, |shown, c| {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // `write!` to a `String` never fails.
                let _ = write!(shown, "\\u{unit:04x}");
            }
        })
    };
    json.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Writes JSON as [`harmless_json`] returns it, in parts of whole lines, so that an output of many megabytes is never
/// completely in memory. [`Self::flush`] writes the last line.
pub struct HarmlessJson<W> {
    output: W,
    waiting: Vec<u8>,
}

impl<W: Write> HarmlessJson<W> {
    /// As soon as so many bytes wait, their complete lines are written.
    const PART: usize = 64 << 10;

    pub fn new(output: W) -> Self {
        Self { output, waiting: Vec::new() }
    }

    fn pass_on(&mut self, length: usize) -> io::Result<()> {
        let rest = self.waiting.split_off(length);
        let lines = String::from_utf8(mem::replace(&mut self.waiting, rest)).map_err(io::Error::other)?;
        self.output.write_all(harmless_json(lines).as_bytes())
    }
}

impl<W: Write> Write for HarmlessJson<W> {
    fn write(&mut self, json: &[u8]) -> io::Result<usize> {
        let before = self.waiting.len();
        self.waiting.extend_from_slice(json);
        if self.waiting.len() >= Self::PART
            && let Some(end) = json.iter().rposition(|byte| *byte == b'\n')
        {
            self.pass_on(before + end + 1)?;
        }
        Ok(json.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pass_on(self.waiting.len())?;
        self.output.flush()
    }
}

/// Whether a line has certainly no such characters.
fn is_plain(line: &str) -> bool {
    line.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') && !line.contains("##") && !line.contains("::")
}

/// The text with `escape` in place of the characters that control something.
fn escaped(text: &str, escape: impl Fn(&mut String, char)) -> String {
    let mut shown = String::with_capacity(text.len());
    let (mut rest, mut before) = (text.chars(), ' ');
    while let Some(c) = rest.next() {
        if steers(c) || begins_command(before, c, rest.as_str()) {
            escape(&mut shown, c)
        } else {
            shown.push(c)
        }
        before = c;
    }
    shown
}

/// Whether a character would control the terminal, the layout or the reading direction.
pub(crate) fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// Whether a character would make the text around it a command of a pipeline that prints it: `##vso[…]` of Azure
/// Pipelines, `##[…]` of GitHub and `##teamcity[…]` anywhere in a line, and `::error::` of GitHub as the first word of a
/// line. Each word may be the first one, because lines are folded. An address such as `::1` is no command.
fn begins_command(before: char, c: char, rest: &str) -> bool {
    let is_name = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic());
    match c {
        '#' => before == '#',
        ':' => before.is_whitespace() && rest.strip_prefix(':').is_some_and(is_name),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_steer_a_terminal_or_a_pipeline_are_escaped() {
        struct Case {
            name: &'static str,
            text: &'static str,
            shown: &'static str,
        }
        let cases = [
            Case { name: "plain text", text: "Grüße, 世界 🦀", shown: "Grüße, 世界 🦀" },
            Case { name: "an escape sequence", text: "\u{1b}[31mred", shown: r"\u{1b}[31mred" },
            Case { name: "a line break", text: "a\nb", shown: r"a\nb" },
            Case { name: "an Arabic letter mark", text: "a\u{61c}b", shown: r"a\u{61c}b" },
            Case { name: "a mark for the reading direction", text: "a\u{200f}b", shown: r"a\u{200f}b" },
            Case { name: "an override of the reading direction", text: "a\u{202e}b", shown: r"a\u{202e}b" },
            Case { name: "an isolate of a reading direction", text: "a\u{2066}b", shown: r"a\u{2066}b" },
            Case { name: "a byte order mark", text: "\u{feff}a", shown: r"\u{feff}a" },
            Case { name: "Azure", text: "a ##vso[task.x]b", shown: r"a #\u{23}vso[task.x]b" },
            Case { name: "the earlier syntax of GitHub", text: "a##[error]b", shown: r"a#\u{23}[error]b" },
            Case { name: "many marks", text: "###[x]", shown: r"#\u{23}\u{23}[x]" },
            Case { name: "GitHub", text: "::error::a", shown: r"\u{3a}:error::a" },
            Case { name: "GitHub, behind blanks", text: " \u{3000}::error::a", shown: " \u{3000}\\u{3a}:error::a" },
            Case { name: "GitHub, in a text that may be folded", text: "a ::error::b", shown: r"a \u{3a}:error::b" },
            Case { name: "single marks", text: "a#1 # b:c :d", shown: "a#1 # b:c :d" },
            Case { name: "a path", text: "a::b", shown: "a::b" },
            Case { name: "addresses", text: "::1, ::/0 and fd00::a", shown: "::1, ::/0 and fd00::a" },
        ];
        for Case { name, text, shown } in cases {
            assert_eq!(harmless(text), shown, "{name}");
            let json = harmless_json(serde_json::to_string_pretty(&[text]).unwrap());
            assert!(!json.contains("##") && !json.contains(|c| steers(c) && c != '\n'), "{name}: {json}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [text], "{name}");
        }
    }

    #[test]
    fn json_written_in_parts_equals_json_escaped_as_a_whole() {
        let long = "ü".repeat(2 * HarmlessJson::<Vec<u8>>::PART);
        let many = ["a", "##[x]", "\u{202e}", "世界"].repeat(HarmlessJson::<Vec<u8>>::PART / 16);
        for (name, texts) in
            [("none", vec![]), ("few", vec!["::error::a"]), ("a long one", vec!["a", &long]), ("many", many)]
        {
            let mut output = HarmlessJson::new(Vec::new());
            serde_json::to_writer_pretty(&mut output, &texts).unwrap();
            let before = output.output.len();
            output.flush().unwrap();
            let whole = harmless_json(serde_json::to_string_pretty(&texts).unwrap());
            assert!(String::from_utf8(output.output).unwrap() == whole, "{name}");
            assert_eq!(before > 0, name == "a long one" || name == "many", "{name}");
        }
    }
}
