//! Prints the table of figures.

use std::time::{Duration, Instant};

use crate::layout::{Layout, shown};

const LAYOUT: Layout = Layout { what: 72, figure: 12, others: &[12] };

/// A table that is printed line by line, because some figures take long.
#[derive(Default)]
pub struct Table {
    lines: usize,
}

impl Table {
    /// Starts a new group of figures.
    pub fn head(&mut self, title: &str) {
        if self.lines > 0 {
            println!();
        }
        println!("{}", LAYOUT.head(title, &["bound"]));
        self.lines += 1;
    }

    /// Prints a figure, with its bound if it has one.
    pub fn row(&mut self, what: &str, figure: f64, unit: &str, bound: Option<f64>) {
        let bound = bound.map(|bound| format!("{bound} {unit}")).unwrap_or_default();
        println!("{}", LAYOUT.row(what, &shown(figure, unit), &[&bound]));
        self.lines += 1;
    }
}

/// Measures how long `work` takes.
pub fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begin = Instant::now();
    let result = work();
    (begin.elapsed(), result)
}

/// A duration in microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
