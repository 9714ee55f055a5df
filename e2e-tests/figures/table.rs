//! What is printed, and how runs become one number.

use std::ops::RangeInclusive;

/// A table that grows line by line: some figures take their time.
pub struct Table {
    missed: Vec<String>,
    group: String,
}

/// What a figure must be.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// This, or less.
    AtMost(f64),
    /// This, or more.
    AtLeast(f64),
    /// Just this.
    Exactly(f64),
    /// Whatever it is: it is only told.
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
    /// A table, with what is to be known of where it was measured.
    pub fn new(about: &str) -> Self {
        println!("{about}");
        Self { missed: Vec::new(), group: String::new() }
    }

    /// A new group of figures.
    pub fn head(&mut self, title: &str) {
        println!("\n{title:<58} {:>10}  {:<21} {:<18} ", "figure", "range", "bound");
        title.clone_into(&mut self.group);
    }

    /// A figure that is the sum, or the worst, of all rounds.
    pub fn total(&mut self, what: &str, figure: f64, unit: &str, bound: Bound) {
        self.line(what, figure, None, unit, bound);
    }

    /// A figure of each round: the median counts.
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
        println!("{}", format!("  {what:<56} {figure:>10}  {range:<21} {bound:<18} {met}").trim_end());
    }

    /// Says once more what is not as it should be.
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

/// Three digits that count.
fn shown(figure: f64, unit: &str) -> String {
    let decimals = match figure.abs() {
        _ if figure.fract() == 0.0 => 0,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{figure:.decimals$} {unit}").trim_end().to_owned()
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

/// What 95 of 100 runs do not exceed.
pub fn percentile_95(mut runs: Vec<f64>) -> f64 {
    runs.sort_by(f64::total_cmp);
    let rank = (runs.len() * 95).div_ceil(100);
    rank.checked_sub(1).map_or(f64::NAN, |index| runs[index])
}

/// `a` by `b`, round by round.
pub fn ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a / b).collect()
}
