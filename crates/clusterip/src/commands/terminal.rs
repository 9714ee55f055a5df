//! The options `--color` and `--quiet`, and the messages and the progress on standard error that respect them.

use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ColorChoice};
use clusterip_cluster::style;
use clusterip_cluster::terminal::{harmless, harmless_lines};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::report::columns::paint;

/// Whether to print only results and errors (`--quiet`). A process runs one command.
static QUIET: AtomicBool = AtomicBool::new(false);

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

/// A progress bar, shown on a terminal if the work takes longer than `delay`.
pub struct Progress {
    pub bar: ProgressBar,
    begin: Instant,
    delay: Duration,
    is_wanted: bool,
    template: &'static str,
}

impl Progress {
    pub fn new(count: u64, delay: Duration, template: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(count), ProgressDrawTarget::hidden());
        let is_wanted = io::stderr().is_terminal() && !is_quiet();
        Self { bar, begin: Instant::now(), delay, is_wanted, template }
    }

    pub fn show(&mut self) {
        if self.is_wanted && self.begin.elapsed() >= self.delay {
            self.is_wanted = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template(self.template) {
                self.bar.set_style(style);
            }
        }
    }
}

/// Prints a line every few seconds until it is dropped.
pub(super) struct Heartbeat {
    /// The end of the channel at the other side tells the thread to stop.
    _alive: Option<Sender<()>>,
}

impl Heartbeat {
    /// `doing` is what the command does, such as `planning`. On a terminal and with `--quiet`, nothing is printed.
    pub(super) fn start(doing: &'static str) -> Self {
        const PAUSE: Duration = Duration::from_secs(10);
        if is_quiet() || io::stderr().is_terminal() {
            return Self { _alive: None };
        }
        Self::every(PAUSE, move |time| notice(&format!("still {doing} after {} s", time.as_secs())))
    }

    fn every(pause: Duration, print: impl Fn(Duration) + Send + 'static) -> Self {
        let (alive, ended) = channel();
        thread::spawn(move || {
            let begin = Instant::now();
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                print(begin.elapsed());
            }
        });
        Self { _alive: Some(alive) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_prints_until_it_is_dropped() {
        let (printed, lines) = channel();
        let heartbeat = Heartbeat::every(Duration::from_millis(10), move |_| printed.send(()).unwrap_or_default());
        for _ in 0..2 {
            lines.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        drop(heartbeat);
        // The thread ends, and with it its end of the channel.
        while lines.recv_timeout(Duration::from_secs(60)) != Err(RecvTimeoutError::Disconnected) {}
    }
}
