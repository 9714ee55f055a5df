//! Colours, which `anstream` takes out again where nobody would see them, or `NO_COLOR` asks for it.

use anstyle::{AnsiColor, Style};

/// Something failed, or is denied.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Something to look at.
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// Something that was done.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Something of less importance.
pub const FAINT: Style = Style::new().dimmed();
/// The head of a table.
pub const HEAD: Style = Style::new().bold();
