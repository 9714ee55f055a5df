//! Positions in a text of which each part has a parser of its own.

use saphyr_parser::{Marker, Span};

use super::text_parts::Part;

/// A position in the whole text: the number of characters before it, its line from 1, and its column from 0.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    pub index: usize,
    pub line: usize,
    pub column: usize,
}

impl Mark {
    pub(super) fn new(part: &Part<'_>, marker: Marker) -> Self {
        let column = if marker.line() == 1 { part.column } else { 0 };
        Self { index: part.chars + marker.index(), line: part.lines + marker.line(), column: column + marker.col() }
    }
}

/// The first and the last position of a part of the whole text.
#[derive(Clone, Copy)]
pub(super) struct TextPosition {
    pub start: Mark,
    pub end: Mark,
}

impl TextPosition {
    pub(super) fn new(part: &Part<'_>, span: Span) -> Self {
        Self { start: Mark::new(part, span.start), end: Mark::new(part, span.end) }
    }
}
