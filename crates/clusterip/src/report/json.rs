//! A plan as JSON.

use clusterip_core::answer::Outcome;
use serde::Serialize;

use crate::nodes::planner::NodeRow;
use crate::planner::{Plan, Row};

#[derive(Serialize)]
struct Document<'p> {
    services: &'p [Row],
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'p [NodeRow]>,
    summary: Both,
}

/// Of the Services, and below a key of their own of the Nodes.
#[derive(Serialize)]
struct Both {
    #[serde(flatten)]
    services: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Summary>,
}

/// How many Services or Nodes have which decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Those that get an address or a block.
    pub allocated: usize,
    /// Those that stay as they are.
    pub left: usize,
    /// Those that are refused.
    pub denied: usize,
}

impl Summary {
    /// Counts rows.
    pub fn of(rows: &[Row]) -> Self {
        Self::count(rows.iter().map(|row| row.decision))
    }

    /// Counts rows of Nodes.
    pub fn of_nodes(rows: &[NodeRow]) -> Self {
        Self::count(rows.iter().map(|row| row.decision))
    }

    fn count(decisions: impl Iterator<Item = Outcome> + Clone) -> Self {
        let count = |wanted| decisions.clone().filter(|decision| *decision == wanted).count();
        Self { allocated: count(Outcome::Allocated), left: count(Outcome::Left), denied: count(Outcome::Denied) }
    }
}

/// The plan, indented, with a line end.
///
/// # Errors
/// Where it can't be written as JSON.
pub fn plan(plan: &Plan) -> Result<String, serde_json::Error> {
    let nodes = plan.nodes.as_ref().map(|nodes| nodes.rows.as_slice());
    let summary = Both { services: Summary::of(&plan.rows), nodes: nodes.map(Summary::of_nodes) };
    let document = Document { services: &plan.rows, nodes, summary };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
