//! The printed table, and the aggregation of several rounds.

use std::ops::RangeInclusive;

use crate::layout::{Layout, median, shown};

const LAYOUT: Layout = Layout { what: 58, figure: 10, others: &[21, 18, 6] };

/// A table that is printed line by line, because some figures take a while.
pub struct Table {
    missed: Vec<String>,
    group: String,
}

/// The bound of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
    /// Exactly this value.
    Exactly(f64),
    /// No bound.
    None,
}

impl Bound {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtMost(bound) => figure <= bound,
            Self::AtLeast(bound) => figure >= bound,
            Self::Exactly(bound) => figure == bound,
            Self::None => true,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::AtMost(bound) => format!("at most {}", shown(bound, unit)),
            Self::AtLeast(bound) => format!("at least {}", shown(bound, unit)),
            Self::Exactly(bound) => shown(bound, unit),
            Self::None => String::new(),
        }
    }
}

impl Table {
    /// Begins a table, with the conditions of the measurements.
    pub fn new(about: &str) -> Self {
        println!("{about}");
        Self { missed: Vec::new(), group: String::new() }
    }

    /// Begins a group of figures.
    pub fn head(&mut self, title: &str) {
        println!("\n{}", LAYOUT.head(title, &["range", "bound"]));
        title.clone_into(&mut self.group);
    }

    /// Prints a figure that is the sum, or the worst, of all rounds.
    pub fn total(&mut self, what: &str, figure: f64, unit: &str, bound: Bound) {
        self.line(what, figure, None, unit, bound);
    }

    /// Prints the median of a figure over all rounds.
    pub fn rounds(&mut self, what: &str, figures: &[f64], unit: &str, bound: Bound) {
        let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let most = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.line(what, median(figures.to_vec()), Some(least..=most), unit, bound);
    }

    fn line(&mut self, what: &str, figure: f64, range: Option<RangeInclusive<f64>>, unit: &str, bound: Bound) {
        let range = range.map(|range| format!("{} to {}", shown(*range.start(), ""), shown(*range.end(), "")));
        let met = match bound {
            Bound::None => "",
            _ if bound.is_met(figure) => "met",
            _ => "MISSED",
        };
        if met == "MISSED" {
            self.missed.push(format!("{}: {what}", self.group));
        }
        let (figure, range, bound) = (shown(figure, unit), range.unwrap_or_default(), bound.text(unit));
        println!("{}", LAYOUT.row(what, &figure, &[&range, &bound, met]));
    }

    /// Repeats the figures that missed their bounds.
    pub fn end(self) {
        println!();
        if self.missed.is_empty() {
            println!("All bounds are met.");
        }
        for missed in self.missed {
            println!("MISSED  {missed}");
        }
    }
}

/// The 95th percentile.
pub fn percentile_95(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    let rank = (runs.len() * 95).div_ceil(100);
    rank.checked_sub(1).map_or(f64::NAN, |index| runs[index])
}

/// `a` divided by `b`, for each round.
pub fn ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a / b).collect()
}
