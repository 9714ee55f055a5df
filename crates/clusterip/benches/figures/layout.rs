//! The layout of all tables of figures, and the median of several runs.

/// The columns of a table that grows line by line: what is measured, the figure, and details.
pub struct Layout {
    /// The width of the first column.
    pub what: usize,
    /// The width of the figures.
    pub figure: usize,
    /// The width of each of the other columns.
    pub others: &'static [usize],
}

impl Layout {
    /// The first line of a group of figures.
    pub fn head(&self, title: &str, others: &[&str]) -> String {
        self.line(title, "figure", others)
    }

    /// A line of a group.
    pub fn row(&self, what: &str, figure: &str, others: &[&str]) -> String {
        self.line(&format!("  {what}"), figure, others)
    }

    fn line(&self, what: &str, figure: &str, others: &[&str]) -> String {
        let mut line = format!("{what:<0$} {figure:>1$}", self.what, self.figure);
        for (text, width) in others.iter().zip(self.others) {
            line.push_str(&format!("  {text:<width$}"));
        }
        line.trim_end().to_owned()
    }
}

/// A figure with three significant digits; a whole number is not rounded.
pub fn shown(figure: f64, unit: &str) -> String {
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
