//! The options `--color` and `--quiet`, and messages on standard error that respect them.

use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ColorChoice};
use clusterip_cluster::style;
use clusterip_cluster::terminal::{harmless, harmless_lines};

use crate::report::columns::paint;

/// Whether to print only results and errors (`--quiet`). A process runs one command.
static QUIET: AtomicBool = AtomicBool::new(false);

/// Options about the terminal.
#[derive(Debug, Args)]
pub struct TerminalOptions {
    /// When to use colours. auto uses them on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
    /// Print only results and errors: no warnings, no notices and no progress
    #[arg(short, long)]
    quiet: bool,
}

impl TerminalOptions {
    /// Applies the options to everything that this process prints from now on.
    pub fn apply(&self) {
        let choice = match self.color {
            ColorChoice::Auto => anstream::ColorChoice::Auto,
            ColorChoice::Always => anstream::ColorChoice::Always,
            ColorChoice::Never => anstream::ColorChoice::Never,
        };
        choice.write_global();
        QUIET.store(self.quiet, Ordering::Relaxed);
    }
}

/// Whether to print only results and errors (`--quiet`).
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a notice to standard error.
pub fn notice(text: &str) {
    if !is_quiet() {
        anstream::eprintln!("{}", harmless(text));
    }
}

/// Prints a warning to standard error.
pub fn warn(text: &str) {
    if !is_quiet() {
        anstream::eprintln!("{} {}", paint(style::WARNING, "warning:"), harmless(text));
    }
}

/// Prints a warning of several lines to standard error.
pub fn warn_lines(text: &str) {
    if !is_quiet() {
        anstream::eprintln!("{} {}", paint(style::WARNING, "warning:"), harmless_lines(text));
    }
}
