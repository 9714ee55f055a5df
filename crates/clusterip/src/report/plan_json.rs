//! Prints a plan as JSON.

use clusterip_core::Verdict;
use clusterip_core::decision::RecordChange;
use serde::Serialize;

use crate::audit::misplaced_services::MisplacedService;
use crate::nodes::block_planner::{NodeRow, RangeUsage};
use crate::planner::{Plan, Row};
use crate::usage::PoolUsage;

#[derive(Serialize)]
struct Document<'p> {
    services: &'p [Row],
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'p [NodeRow]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    misplaced: &'p [MisplacedService],
    pools: Pools<'p>,
    summary: All,
}

/// How full the pools are after the plan.
#[derive(Serialize)]
struct Pools<'p> {
    services: &'p [PoolUsage],
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<&'p [PoolUsage]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'p [RangeUsage]>,
}

/// The totals of Services; external addresses and Nodes have keys of their own below.
#[derive(Serialize)]
struct All {
    #[serde(flatten)]
    services: Summary,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<ExternalSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Summary>,
}

/// The number of Services or Nodes for each decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Objects that get an address or a block.
    pub allocated: usize,
    /// Objects that stay as they are.
    pub unchanged: usize,
    pub denied: usize,
}

impl Summary {
    /// Counts the decisions about Services.
    pub fn of(rows: &[Row]) -> Self {
        Self::count(rows.iter().map(|row| &row.decision))
    }

    pub fn of_nodes(rows: &[NodeRow]) -> Self {
        Self::count(rows.iter().map(|row| &row.decision))
    }

    fn count<'r>(decisions: impl Iterator<Item = &'r Verdict> + Clone) -> Self {
        let count = |name| decisions.clone().filter(|decision| decision.name() == name).count();
        Self { allocated: count("allocated"), unchanged: count("unchanged"), denied: count("denied") }
    }
}

/// The number of Services for each decision about their external addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ExternalSummary {
    /// Services that get addresses.
    pub recorded: usize,
    /// Services that lose their addresses.
    pub removed: usize,
    /// Services that stay as they are.
    pub unchanged: usize,
    /// Services that are denied for the addresses that they claim.
    pub denied: usize,
}

impl ExternalSummary {
    /// Counts the decisions about external addresses.
    pub fn of(rows: &[Row]) -> Self {
        let decisions = || rows.iter().filter_map(|row| Some(row.external.as_ref()?.decision));
        let count = |wanted| decisions().filter(|decision| *decision == wanted).count();
        Self {
            recorded: count(RecordChange::Recorded),
            removed: count(RecordChange::Removed),
            unchanged: count(RecordChange::Unchanged),
            denied: count(RecordChange::Denied),
        }
    }

    /// The total number of these Services.
    pub fn all(&self) -> usize {
        self.recorded + self.removed + self.unchanged + self.denied
    }
}

/// The plan as indented JSON with a final line break. `misplaced` are the existing Services that are misplaced with the
/// settings of the plan.
pub fn plan(plan: &Plan, misplaced: &[MisplacedService]) -> Result<String, serde_json::Error> {
    let nodes = plan.nodes.as_ref().map(|nodes| nodes.rows.as_slice());
    let summary = All {
        services: Summary::of(&plan.rows),
        external: plan.external.as_ref().map(|_| ExternalSummary::of(&plan.rows)),
        nodes: nodes.map(Summary::of_nodes),
    };
    let ranges = plan.nodes.as_ref().map(|nodes| nodes.ranges.as_slice());
    let pools = Pools { services: &plan.pools, external: plan.external.as_deref(), nodes: ranges };
    let document = Document { services: &plan.rows, nodes, misplaced, pools, summary };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
