//! Escapes text from files and clusters before it is printed to a terminal.

/// The text on one line, with every character escaped that would control the terminal, the layout or the reading
/// direction.
pub fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Like [`harmless`], but keeps line breaks.
pub fn harmless_lines(text: &str) -> String {
    text.split('\n').map(harmless).collect::<Vec<_>>().join("\n")
}

/// An invisible mark that changes the reading direction of the characters beside it.
const ARABIC_LETTER_MARK: char = '\u{61c}';

/// Whether a character would control the terminal, the layout or the reading direction.
pub fn steers(c: char) -> bool {
    let invisible =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || invisible || c == ARABIC_LETTER_MARK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_steer_a_terminal_are_escaped() {
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
        ];
        for Case { name, text, shown } in cases {
            assert_eq!(harmless(text), shown, "{name}");
        }
    }
}
