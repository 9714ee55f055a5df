//! The table of the results, in Markdown.

use std::collections::BTreeSet;

use e2e_tests::support::upstream_tests::{Outcome, Outcomes};

/// The longest reason, in characters.
const REASON: usize = 200;

/// The results of one run of all tests.
pub struct Run {
    pub name: &'static str,
    pub outcomes: Outcomes,
    /// The admission requests that `clusterip` answered.
    pub requests: Option<u64>,
}

/// A row for each test, with its outcome in each run, then sums, then why tests were skipped or failed.
pub fn table(runs: &[Run]) -> String {
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.outcomes.keys()).collect();
    let row = |title: &str, cell: &dyn Fn(&Run) -> String| {
        let cells: Vec<String> = runs.iter().map(cell).collect();
        format!("| {title} | {} |", cells.join(" | "))
    };
    let mut lines = vec![row("", &|run| run.name.to_owned()), row("---", &|_| "---".to_owned())];
    let count = |run: &Run, is_counted: fn(&Outcome) -> bool| {
        run.outcomes.values().filter(|outcome| is_counted(outcome)).count().to_string()
    };
    lines.push(row("passed", &|run| count(run, Outcome::passed)));
    lines.push(row("failed", &|run| count(run, |outcome| matches!(outcome, Outcome::Failed(_)))));
    lines.push(row("skipped", &|run| count(run, |outcome| matches!(outcome, Outcome::Skipped(_)))));
    let requests = |run: &Run| run.requests.map_or_else(String::new, |requests| requests.to_string());
    lines.push(row("admission requests that `clusterip` answered", &requests));
    lines.extend([String::new(), row("test", &|run| run.name.to_owned()), row("---", &|_| "---".to_owned())]);
    lines.extend(names.iter().map(|name| row(short(name), &|run| cell(run.outcomes.get(*name)).to_owned())));
    lines.push(String::new());
    lines.extend(runs.iter().flat_map(reasons));
    lines.join("\n")
}

/// The tests that passed in the first run, and not in another one.
pub fn regressions(runs: &[Run]) -> Vec<String> {
    let Some((without, with)) = runs.split_first() else { return Vec::new() };
    let passed = without.outcomes.iter().filter(|(_, outcome)| outcome.passed()).map(|(name, _)| name);
    let regressions = passed.flat_map(|name| {
        let failed = with.iter().filter(|run| !run.outcomes.get(name).is_some_and(Outcome::passed));
        failed.map(move |run| format!("{name}: {}: {:?}", run.name, run.outcomes.get(name)))
    });
    regressions.collect()
}

fn cell(outcome: Option<&Outcome>) -> &'static str {
    match outcome {
        None => "did not run",
        Some(Outcome::Passed { attempts: 1 }) => "passed",
        Some(Outcome::Passed { .. }) => "passed when repeated",
        Some(Outcome::Skipped(_)) => "skipped",
        Some(Outcome::Failed(_)) => "**failed**",
    }
}

/// All tests are of the group for networks.
fn short(name: &str) -> &str {
    name.strip_prefix("[sig-network] ").unwrap_or(name)
}

fn reasons(run: &Run) -> impl Iterator<Item = String> {
    run.outcomes.iter().filter_map(|(name, outcome)| match outcome {
        Outcome::Passed { .. } => None,
        Outcome::Skipped(reason) | Outcome::Failed(reason) => {
            let words: Vec<&str> = reason.split_whitespace().collect();
            let reason: String = words.join(" ").chars().take(REASON).collect();
            Some(format!("- {}: {}: {reason}", short(name), run.name))
        }
    })
}
