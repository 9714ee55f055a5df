//! The state of the Services after a fault, and the table of all faults.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};
use kube::Client;
use serde_json::Value;

use super::load::{ATTEMPT, Planned, Tally};
use super::pools::Pools;
use crate::support::eventually::MAX_WAIT;
use crate::support::move_helpers::addresses;

/// The state of the Services of a load.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct State {
    pub lost: usize,
    pub half_moved: usize,
    pub astray: usize,
}

pub async fn state(client: &Client, namespace: &str, planned: &[Planned], pools: Pools) -> Option<State> {
    let request = axum::http::Request::get("/api/v1/services").body(Vec::new()).unwrap();
    let list = tokio::time::timeout(ATTEMPT, client.request::<Value>(request)).await.ok()?.ok()?;
    let all = list["items"].as_array().unwrap();
    let mut state = State::default();
    let own: BTreeMap<&str, &Value> = all
        .iter()
        .filter(|service| service["metadata"]["namespace"] == namespace)
        .map(|service| (service["metadata"]["name"].as_str().unwrap(), service))
        .collect();
    for planned in planned {
        let Some(service) = own.get(planned.name.as_str()) else {
            state.lost += 1;
            continue;
        };
        let text = service.to_string();
        if text.contains(MOVING_ANNOTATION) || text.contains(MOVING_NAME) {
            state.half_moved += 1;
        } else if addresses(service).first().is_none_or(|address| pools.of(*address) != pools.wanted(planned)) {
            state.astray += 1;
        }
    }
    Some(state)
}

/// Waits until no Service is half moved or outside of its pool, or until the time limit.
pub async fn settled(client: &Client, namespace: &str, planned: &[Planned], pools: Pools) -> State {
    let deadline = Instant::now() + 2 * MAX_WAIT;
    loop {
        let found = state(client, namespace, planned, pools).await;
        if let Some(found) =
            found.filter(|found| Instant::now() >= deadline || (found.half_moved, found.astray) == (0, 0))
        {
            return found;
        }
        assert!(Instant::now() < deadline, "the Services can't be listed");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A row of the table.
pub struct Row {
    pub fault: String,
    pub tally: Tally,
    pub state: State,
    /// The seconds from the end of the fault until all Services were in their pools, and the limit.
    pub seconds: f64,
    pub most: Option<f64>,
    /// Whether the API server may be unavailable.
    pub away: bool,
    /// Whether a replica must be reachable all the time.
    pub reached: bool,
    /// Other violations.
    pub wrong: Vec<String>,
}

impl Row {
    pub fn missed(&self, full: bool) -> Vec<String> {
        let Self { tally, state, .. } = self;
        let mut missed = Vec::new();
        let mut say = |bad: bool, what: String| {
            if bad {
                missed.push(format!("{}: {what}", self.fault));
            }
        };
        say(tally.created != tally.tried, format!("{} of {} were created", tally.created, tally.tried));
        say(tally.duplicates > 0, format!("{} addresses were handed out that another Service had", tally.duplicates));
        for (why, count) in &tally.failed {
            say(true, format!("{count} times: {why}"));
        }
        say(!self.away && tally.no_server > 0, format!("the API server failed {} times", tally.no_server));
        say(self.reached && tally.no_replica > 0, format!("no replica was reached {} times", tally.no_replica));
        for what in &self.wrong {
            say(true, what.clone());
        }
        say(*state != State::default(), format!("{state:?}"));
        if let Some(most) = self.most.filter(|_| full) {
            say(self.seconds > most, format!("{:.1} s until all were in their pools, not {most}", self.seconds));
        }
        missed
    }
}

pub fn table(rows: &[Row]) -> String {
    let mut table = String::from(
        "| fault | tried | created | no replica reached | API server away | failed | duplicates | lost | half moved | \
         outside their pool | seconds until all are in it |\n| --- |",
    );
    table.push_str(&" ---: |".repeat(10));
    for row in rows {
        let Row { fault, tally, state, seconds, .. } = row;
        let failed: usize = tally.failed.values().sum();
        write!(
            table,
            "\n| {fault} | {} | {} | {} | {} | {failed} | {} | {} | {} | {} | {seconds:.1} |",
            tally.tried,
            tally.created,
            tally.no_replica,
            tally.no_server,
            tally.duplicates,
            state.lost,
            state.half_moved,
            state.astray
        )
        .unwrap();
    }
    table
}
