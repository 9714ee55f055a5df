//! Colours. `anstream` strips them if the output is not a terminal or `NO_COLOR` is set.

use anstyle::{AnsiColor, Style};

pub const ERROR: Style = AnsiColor::Red.on_default().bold();
pub const WARNING: Style = AnsiColor::Yellow.on_default();
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const FAINT: Style = Style::new().dimmed();
pub const HEAD: Style = Style::new().bold();
