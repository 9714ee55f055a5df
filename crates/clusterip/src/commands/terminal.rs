//! The options `--color` and `--quiet`, and the messages and the progress on standard error that respect them.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ColorChoice};
use clusterip_cluster::harmless_text::{harmless, harmless_lines};
use clusterip_cluster::style;
use indicatif::{ProgressBar, ProgressStyle};

use crate::report::columns::paint;

/// Whether to print only results and errors (`--quiet`). A process runs one command.
static QUIET: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Default, Args)]
pub struct TerminalOptions {
    /// When to use colours. auto uses them on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
    /// Print only results and errors: no warnings, no notices and no progress
    #[arg(short, long)]
    quiet: bool,
}

impl TerminalOptions {
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

pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

pub fn notice(text: &str) {
    if !is_quiet() {
        anstream::eprintln!("{}", harmless(text));
    }
}

pub fn warn(text: &str) {
    warn_lines(&harmless(text));
}

pub fn warn_lines(text: &str) {
    if !is_quiet() {
        anstream::eprintln!("{} {}", paint(style::WARNING, "warning:"), harmless_lines(text));
    }
}

pub fn print_error(text: &str) {
    anstream::eprintln!("{} {}", paint(style::ERROR, "error:"), harmless_lines(text));
}

/// A progress bar on standard error, if that is a terminal. It is drawn when it first changes.
pub fn progress_bar(count: u64, template: &str) -> ProgressBar {
    let bar = if is_quiet() { ProgressBar::hidden() } else { ProgressBar::new(count) };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Prints a line every few seconds until the result is dropped, except on a terminal and with `--quiet`. `doing` is what
/// the command does, such as `planning`.
pub fn heartbeat(doing: &'static str) -> Option<Sender<()>> {
    const PAUSE: Duration = Duration::from_secs(10);
    let print = move |time: Duration| notice(&format!("still {doing} after {} s", time.as_secs()));
    (!is_quiet() && !io::stderr().is_terminal()).then(|| every(PAUSE, print))
}

/// Calls `print` with the time since the begin, until the result is dropped.
fn every(pause: Duration, print: impl Fn(Duration) + Send + 'static) -> Sender<()> {
    let (alive, ended) = channel();
    thread::spawn(move || {
        let begin = Instant::now();
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            print(begin.elapsed());
        }
    });
    alive
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_prints_until_it_is_dropped() {
        let (printed, lines) = channel();
        let heartbeat = every(Duration::from_millis(10), move |_| printed.send(()).unwrap_or_default());
        for _ in 0..2 {
            lines.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(heartbeat);
        // The thread ends, and with it its end of the channel.
        while lines.recv_timeout(Duration::from_secs(60)) != Err(RecvTimeoutError::Disconnected) {}
    }
}
