//! Colours. `anstream` strips them if the output is not a terminal or `NO_COLOR` is set.

use anstyle::{AnsiColor, Style};

/// A failure or denial.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Something that needs attention.
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// A success.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Less important text.
pub const FAINT: Style = Style::new().dimmed();
/// The header of a table.
pub const HEAD: Style = Style::new().bold();
