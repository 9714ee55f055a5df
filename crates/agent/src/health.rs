//! The state of an agent that its probes report.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::PoisonError;

use clusterip_cluster::watch::stores::Stores;
use clusterip_failover::timing::STALLED;
use tokio::time::Instant;

/// The state of an agent that its probes report.
#[derive(Clone, Debug)]
pub struct Health {
    /// The addresses that may be on the network of its node.
    pub holding: BTreeSet<IpAddr>,
    /// Whether the agent's heartbeat is renewed, so that it may hold addresses.
    pub alive: bool,
    /// When the loop that renews the heartbeat last began a round.
    pub beat: Instant,
}

impl Health {
    /// The state of an agent that is starting.
    pub fn new() -> Self {
        Self { holding: BTreeSet::new(), alive: false, beat: Instant::now() }
    }

    /// Why the liveness probe fails: the renewal loop has not begun a round for at least 60 s. `None` if the agent is
    /// alive, even if it may hold no address.
    pub fn liveness_error(&self, now: Instant) -> Option<String> {
        let still = now.saturating_duration_since(self.beat);
        (still >= STALLED).then(|| format!("the loop of the agent has been stalled for {} s", still.as_secs()))
    }

    /// Why the readiness probe fails: the agent may hold no address. `None` if it may.
    pub fn readiness_error(&self) -> Option<String> {
        (!self.alive).then(|| "the heartbeat is not renewed: no address may be held".to_owned())
    }
}

/// Why the readiness probe fails: the cluster has no Node of this name, so that no address is ever assigned to the
/// agent. `None` if it has one, and as long as the Nodes are not known.
pub fn unknown_node(node: &str, stores: &Stores) -> Option<String> {
    if !stores.complete() {
        return None;
    }
    let snapshot = stores.snapshot().read().unwrap_or_else(PoisonError::into_inner);
    let is_unknown = snapshot.get("v1", "Node", "", node).is_none();
    is_unknown.then(|| format!("there is no Node {node:?}: --node must be the name of the Node that the agent runs on"))
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stalled_loop_is_dead_and_a_lapsed_heartbeat_is_not_ready() {
        let begin = Instant::now();
        let health = |alive| Health { alive, beat: begin, ..Health::new() };
        let (still, unready) = (
            Some("the loop of the agent has been stalled for 60 s".to_owned()),
            Some("the heartbeat is not renewed: no address may be held".to_owned()),
        );
        struct Case {
            name: &'static str,
            alive: bool,
            /// The seconds since the last round.
            after: u64,
            liveness_error: Option<String>,
            readiness_error: Option<String>,
        }
        let cases = [
            Case { name: "alive", alive: true, after: 0, liveness_error: None, readiness_error: None },
            Case {
                name: "heartbeat not renewed",
                alive: false,
                after: 0,
                liveness_error: None,
                readiness_error: unready.clone(),
            },
            Case {
                name: "59 s without a round",
                alive: false,
                after: 59,
                liveness_error: None,
                readiness_error: unready.clone(),
            },
            Case {
                name: "60 s without a round",
                alive: true,
                after: 60,
                liveness_error: still.clone(),
                readiness_error: None,
            },
        ];
        for Case { name, alive, after, liveness_error, readiness_error } in cases {
            let health = health(alive);
            let found = (health.liveness_error(begin + Duration::from_secs(after)), health.readiness_error());
            assert_eq!(found, (liveness_error, readiness_error), "{name}");
        }
    }
}
