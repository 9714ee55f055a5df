//! What is printed, and how runs become one number.

use std::time::{Duration, Instant};

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
        println!("{title:<72} {:>12}   bound", "figure");
        self.lines += 1;
    }

    /// A figure, and the bound that it has, if any.
    pub fn row(&mut self, what: &str, figure: f64, unit: &str, bound: Option<f64>) {
        let figure = format!("{figure:.*} {unit}", decimals(figure));
        let bound = bound.map(|bound| format!("{bound} {unit}")).unwrap_or_default();
        println!("  {}", format!("{what:<70} {figure:>12}   {bound}").trim_end());
        self.lines += 1;
    }

    /// A figure that could not be had, and why.
    pub fn missing(&mut self, what: &str, why: &str) {
        println!("  {what}: {why}");
        self.lines += 1;
    }
}

/// Three digits that count.
fn decimals(figure: f64) -> usize {
    match figure {
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    }
}

/// The median of some runs.
pub fn median(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    match (runs.len(), runs.len() / 2) {
        (0, _) => f64::NAN,
        (len, middle) if len % 2 == 0 => f64::midpoint(runs[middle - 1], runs[middle]),
        (_, middle) => runs[middle],
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
