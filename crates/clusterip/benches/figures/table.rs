//! What is printed.

use std::time::{Duration, Instant};

use crate::layout::{Layout, shown};

const LAYOUT: Layout = Layout { what: 72, figure: 12, others: &[12] };

/// A table that grows line by line: some figures take their time.
#[derive(Default)]
pub struct Table {
    lines: usize,
}

impl Table {
    /// A new group of figures.
    pub fn head(&mut self, title: &str) {
        if self.lines > 0 {
            println!();
        }
        println!("{}", LAYOUT.head(title, &["bound"]));
        self.lines += 1;
    }

    /// A figure, and the bound that it has, if any.
    pub fn row(&mut self, what: &str, figure: f64, unit: &str, bound: Option<f64>) {
        let bound = bound.map(|bound| format!("{bound} {unit}")).unwrap_or_default();
        println!("{}", LAYOUT.row(what, &shown(figure, unit), &[&bound]));
        self.lines += 1;
    }

    /// A figure that could not be had, and why.
    pub fn missing(&mut self, what: &str, why: &str) {
        println!("  {what}: {why}");
        self.lines += 1;
    }
}

/// How long something takes.
pub fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let begin = Instant::now();
    let result = work();
    (begin.elapsed(), result)
}

/// In microseconds.
pub fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}
