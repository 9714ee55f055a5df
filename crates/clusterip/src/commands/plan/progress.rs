//! The progress bar of `clusterip plan`.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::commands::terminal_options::is_quiet;

/// A progress bar, shown on a terminal if planning takes longer than a second.
pub(super) struct Bar {
    bar: ProgressBar,
    begin: Instant,
    wanted: bool,
}

impl Bar {
    const PROGRESS_DELAY: Duration = Duration::from_secs(1);

    pub(super) fn new(planned: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(planned), ProgressDrawTarget::hidden());
        Self { bar, begin: Instant::now(), wanted: io::stderr().is_terminal() && !is_quiet() }
    }

    pub(super) fn show(&mut self, done: u64) {
        if self.wanted && self.begin.elapsed() > Self::PROGRESS_DELAY {
            self.wanted = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len}, {eta} to go") {
                self.bar.set_style(style);
            }
        }
        self.bar.set_position(done);
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}
