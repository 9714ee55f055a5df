//! Whether this agent may write a Lease now. For a task that any agent may do, the agents take turns, so that usually
//! only one of them writes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::super::agent_plan::Subject;
use super::super::next_deadline::NextDeadline;
use super::super::rendezvous::order_for;
use super::super::timing::TURNS;
use super::AgentState;

impl AgentState {
    /// Whether the claim of the address may be written now.
    pub(super) fn may_write(&self, address: IpAddr, deadline: &mut NextDeadline) -> bool {
        let retry_at = self.histories.get(&address).and_then(|history| history.retry_at);
        !self.busy.contains(&Subject::Address(address)) && retry_at.is_none_or(|retry_at| deadline.is_due(retry_at))
    }

    /// Whether this agent may write the heartbeat of another node now. The first agent in the order of turns may write
    /// it from `since` on, and each further agent one `pause` later.
    pub(super) fn may_write_heartbeat(
        &self,
        node: &str,
        since: Instant,
        pause: Duration,
        deadline: &mut NextDeadline,
    ) -> bool {
        if node == self.node || self.busy.contains(&Subject::Node(node.to_owned())) {
            return false;
        }
        let due = since + pause * self.turn(node, deadline.now);
        deadline.is_due(self.heartbeat_retry_at.get(node).map_or(due, |retry_at| due.max(*retry_at)))
    }

    /// The number of agents that come before this one for a task that any agent may do.
    pub(super) fn turn(&self, name: &str, now: Instant) -> u32 {
        let live = self.live(now);
        let turn = order_for(name, live).iter().position(|node| *node == self.node);
        u32::try_from(turn.unwrap_or_default()).unwrap_or(u32::MAX).min(TURNS)
    }

    /// The nodes whose agents are alive, including this one.
    pub(super) fn live(&self, now: Instant) -> BTreeSet<&str> {
        self.peers.live(now).chain([self.node.as_str()]).collect()
    }
}
