//! Text from files and clusters, on its way to a terminal.

/// The text in one line, with nothing in it that would steer the terminal, the layout, or the direction
/// of reading.
pub fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// The same for a text of several lines.
pub fn harmless_lines(text: &str) -> String {
    text.split('\n').map(harmless).collect::<Vec<_>>().join("\n")
}

/// Whether a character would steer the terminal, the layout, or the direction of reading.
pub fn steers(c: char) -> bool {
    let invisible =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || invisible
}
