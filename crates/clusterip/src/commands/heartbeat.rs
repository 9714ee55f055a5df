//! A line on standard error every few seconds while a command works, where there is no terminal to show progress on.

use std::io::{self, IsTerminal as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::terminal_options::{is_quiet, notice};

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
