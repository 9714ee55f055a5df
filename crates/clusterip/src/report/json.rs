//! A plan as JSON.

use clusterip_core::answer::Outcome;
use serde::Serialize;

use crate::planner::{Plan, Row};

#[derive(Serialize)]
struct Document<'p> {
    services: &'p [Row],
    summary: Summary,
}

/// How many Services have which decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Those that get an address.
    pub allocated: usize,
    /// Those that stay as they are.
    pub left: usize,
    /// Those that are refused.
    pub denied: usize,
}

impl Summary {
    /// Counts rows.
    pub fn of(rows: &[Row]) -> Self {
        let count = |decision| rows.iter().filter(|row| row.decision == decision).count();
        Self { allocated: count(Outcome::Allocated), left: count(Outcome::Left), denied: count(Outcome::Denied) }
    }
}

/// The plan, indented, with a line end.
///
/// # Errors
/// Where it can't be written as JSON.
pub fn plan(plan: &Plan) -> Result<String, serde_json::Error> {
    let document = Document { services: &plan.rows, summary: Summary::of(&plan.rows) };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
