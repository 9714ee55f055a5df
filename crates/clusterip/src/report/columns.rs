//! Aligns rows of cells in columns, and folds text at the width of the terminal.

use std::iter;

use anstyle::Style;
use clusterip_cluster::style;
use console::{Term, measure_text_width};

const GAP: usize = 2;
/// The least width for folded text. If there is less room, the terminal breaks the line where it likes.
const LEAST: usize = 20;

/// How tables are laid out. The default is a line for each row, however long it is, below a line with titles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The number of characters that fit into a line; `None` if lines may have any length.
    pub width: Option<usize>,
    pub no_headers: bool,
}

impl Layout {
    pub fn of_stdout(no_headers: bool) -> Self {
        Self { width: Term::stdout().size_checked().map(|(_, columns)| usize::from(columns)), no_headers }
    }

    pub fn head(self, titles: &[&str]) -> Option<Vec<String>> {
        (!self.no_headers).then(|| titles.iter().map(|title| paint(style::HEAD, title)).collect())
    }
}

/// One text for each row, behind `indent` blanks. A last cell that is too long continues below its beginning.
pub fn lines(rows: impl IntoIterator<Item = Vec<String>>, indent: usize, layout: Layout) -> Vec<String> {
    aligned(rows.into_iter().collect(), indent, GAP, layout)
}

/// `rows` returns the rows for a bar of a given length, which is shortened until they fit. At last the columns move together.
pub fn lines_with_bar(rows: impl Fn(usize) -> Vec<Vec<String>>, longest: usize, layout: Layout) -> Vec<String> {
    let any = Layout { width: None, ..layout };
    let mut attempts = [longest, longest / 2, longest / 4, 0].into_iter().map(|bar| aligned(rows(bar), 0, GAP, any));
    let fits = |line: &String| layout.width.is_none_or(|width| measure_text_width(line) <= width);
    attempts.find(|lines| lines.iter().all(fits)).unwrap_or_else(|| aligned(rows(0), 0, 1, any))
}

pub fn table(titles: &[&str], rows: impl Iterator<Item = Vec<String>>, layout: Layout) -> Vec<String> {
    table_with_remarks(titles, rows.map(|cells| (cells, Vec::new())), layout)
}

/// The lines of a table whose rows are followed by remarks.
pub fn table_with_remarks(
    titles: &[&str],
    rows: impl Iterator<Item = (Vec<String>, Vec<String>)>,
    layout: Layout,
) -> Vec<String> {
    let head = layout.head(titles).map(|head| (head, Vec::new()));
    let (cells, remarks): (Vec<_>, Vec<_>) = head.into_iter().chain(rows).unzip();
    let lines = aligned(cells, 0, GAP, layout).into_iter().zip(remarks);
    let remark = |remark: String| paragraph(&remark, 2, 4, layout);
    lines.flat_map(|(line, remarks)| iter::once(line).chain(remarks.into_iter().map(remark))).collect()
}

/// Sections of lines, with an empty line between them.
pub fn sections(sections: impl IntoIterator<Item = Vec<String>>) -> String {
    let sections = sections.into_iter().filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n") + "\n");
    sections.collect::<Vec<_>>().join("\n")
}

/// A text behind `indent` blanks, of which further lines begin behind `hanging` blanks.
pub fn paragraph(text: &str, indent: usize, hanging: usize, layout: Layout) -> String {
    // The first line is folded as if it began as far to the right as the others.
    let room = layout.width.and_then(|width| width.checked_sub(hanging.max(indent))).filter(|room| *room >= LEAST);
    format!("{}{}", " ".repeat(indent), folded(text, room).join(&format!("\n{}", " ".repeat(hanging))))
}

pub fn paint(style: Style, text: &str) -> String {
    format!("{}{text}{}", style.render(), style.render_reset())
}

fn aligned(rows: Vec<Vec<String>>, indent: usize, gap: usize, layout: Layout) -> Vec<String> {
    // The last cell of a row has no column to its right, so that its width does not matter.
    let before_last = |row: &[String]| row.len().saturating_sub(1);
    let columns = rows.iter().map(|row| before_last(row)).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column).filter(|_| column < before_last(row)));
        cells.map(|cell| measure_text_width(cell)).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: Vec<String>| {
        let last = before_last(&row);
        let mut line = " ".repeat(indent);
        for (cell, width) in row.iter().zip(&widths).take(last) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width.saturating_sub(measure_text_width(cell)) + gap));
        }
        let start = measure_text_width(&line);
        let room = layout.width.and_then(|width| width.checked_sub(start)).filter(|room| *room >= LEAST);
        let text = row.get(last).map(|cell| folded(cell, room)).unwrap_or_default();
        line.push_str(&text.join(&format!("\n{}", " ".repeat(start))));
        line.trim_end().to_owned()
    };
    rows.into_iter().map(line).collect()
}

/// The lines of a text. Lines break at blanks; a word that is longer than a line stays whole.
fn folded(text: &str, room: Option<usize>) -> Vec<String> {
    let Some(room) = room.filter(|room| measure_text_width(text) > *room) else { return vec![text.to_owned()] };
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for word in text.split(' ') {
        let width = measure_text_width(word);
        match lines.last_mut() {
            Some(line) if used + 1 + width <= room => {
                line.push(' ');
                line.push_str(word);
                used += 1 + width;
            }
            _ => {
                lines.push(word.to_owned());
                used = width;
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn last_column_continues_below_its_beginning() {
        const IN_ONE_LINE: &str = "
  NAME         TO        WHY
  web          10.0.0.7  it lies in pool linux, and belongs to pool windows
  a-long-name  -         stays
  a pool without further cells";
        const WRAPPED: &str = "
  NAME         TO        WHY
  web          10.0.0.7  it lies in pool linux,
                         and belongs to pool
                         windows
  a-long-name  -         stays
  a pool without further cells";
        let rows = || {
            vec![
                row(&["NAME", "TO", "WHY"]),
                row(&["web", "10.0.0.7", "it lies in pool linux, and belongs to pool windows"]),
                row(&["a-long-name", "-", "stays"]),
                row(&["a pool without further cells"]),
            ]
        };
        // At 40, there is no room for the last column.
        let cases = [(None, IN_ONE_LINE), (Some(75), IN_ONE_LINE), (Some(50), WRAPPED), (Some(40), IN_ONE_LINE)];
        for (width, expected) in cases {
            let found = lines(rows(), 2, Layout { width, no_headers: false });
            assert_eq!(format!("\n{}", found.join("\n")), expected, "{width:?}");
        }
    }

    #[test]
    fn colours_and_wide_characters_do_not_move_columns() {
        let good = paint(style::GOOD, "ok");
        let found =
            lines([vec![good.clone(), "x".to_owned()], row(&["世界", "x"]), row(&["long", "x"])], 0, Layout::default());
        assert_eq!(found, [format!("{good}    x"), "世界  x".to_owned(), "long  x".to_owned()]);
    }

    #[test]
    fn bar_gets_the_room_that_is_left() {
        let rows = |bar: usize| vec![row(&["POOL", "FILL"]), row(&["linux", &format!("{}50 %", "#".repeat(bar))])];
        let cases = [
            (None, "linux  ####################50 %"),
            (Some(31), "linux  ####################50 %"),
            (Some(30), "linux  ##########50 %"),
            (Some(20), "linux  #####50 %"),
            (Some(12), "linux  50 %"),
            (Some(10), "linux 50 %"),
        ];
        for (width, expected) in cases {
            let found = lines_with_bar(rows, 20, Layout { width, no_headers: false });
            assert_eq!(found.last().map(String::as_str), Some(expected), "{width:?}");
        }
    }

    #[test]
    fn paragraph_continues_behind_its_mark() {
        let text = "=> remove the range from the pool";
        let at = |width| paragraph(text, 2, 5, Layout { width, no_headers: false });
        assert_eq!(at(None), "  => remove the range from the pool");
        assert_eq!(at(Some(27)), "  => remove the range\n     from the pool");
    }
}
