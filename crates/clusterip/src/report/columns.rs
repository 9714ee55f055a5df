//! Aligns rows of cells in columns.

use std::io::{self, Write as _};

use anstyle::Style;
use tabwriter::TabWriter;

/// One line for each row. Colour codes have no width.
///
/// # Errors
/// If the columns can't be aligned.
pub fn lines(rows: impl IntoIterator<Item = Vec<String>>) -> io::Result<Vec<String>> {
    let mut cells = TabWriter::new(Vec::new()).padding(2).ansi(true);
    for row in rows {
        writeln!(cells, "{}", row.join("\t"))?;
    }
    let cells = cells.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
    let cells = String::from_utf8(cells).map_err(io::Error::other)?;
    Ok(cells.lines().map(|line| line.trim_end().to_owned()).collect())
}

/// The text in a colour.
pub fn paint(style: Style, text: &str) -> String {
    format!("{}{text}{}", style.render(), style.render_reset())
}
