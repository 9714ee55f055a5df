//! A plan as JSON.

use clusterip_core::answer::Outcome;
use clusterip_core::external;
use serde::Serialize;

use crate::nodes::planner::NodeRow;
use crate::planner::{Plan, Row};

#[derive(Serialize)]
struct Document<'p> {
    services: &'p [Row],
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'p [NodeRow]>,
    summary: All,
}

/// Of the Services, and below keys of their own of external addresses and of Nodes.
#[derive(Serialize)]
struct All {
    #[serde(flatten)]
    services: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<ExternalSummary>,
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

/// How many Services have which decision about their external addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExternalSummary {
    /// Those that get addresses.
    pub recorded: usize,
    /// Those that lose them.
    pub removed: usize,
    /// Those that stay as they are.
    pub left: usize,
    /// Those that are refused for what they claim.
    pub denied: usize,
}

impl ExternalSummary {
    /// Counts rows that are about external addresses.
    pub fn of(rows: &[Row]) -> Self {
        let decisions = || rows.iter().filter_map(|row| Some(row.external.as_ref()?.decision));
        let count = |wanted| decisions().filter(|decision| *decision == wanted).count();
        Self {
            recorded: count(external::Outcome::Recorded),
            removed: count(external::Outcome::Removed),
            left: count(external::Outcome::Left),
            denied: count(external::Outcome::Denied),
        }
    }

    /// All of them.
    pub fn all(&self) -> usize {
        self.recorded + self.removed + self.left + self.denied
    }
}

/// The plan, indented, with a line end.
///
/// # Errors
/// Where it can't be written as JSON.
pub fn plan(plan: &Plan) -> Result<String, serde_json::Error> {
    let nodes = plan.nodes.as_ref().map(|nodes| nodes.rows.as_slice());
    let summary = All {
        services: Summary::of(&plan.rows),
        external: plan.external.as_ref().map(|_| ExternalSummary::of(&plan.rows)),
        nodes: nodes.map(Summary::of_nodes),
    };
    let document = Document { services: &plan.rows, nodes, summary };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
