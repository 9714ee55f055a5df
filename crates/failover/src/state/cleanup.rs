//! Cleans up: forgets what no later plan needs, and removes Leases that no agent needs any more.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tokio::time::Instant;

use super::super::agent_plan::{LeaseWrite, Subject, WriteKind};
use super::super::next_deadline::NextDeadline;
use super::super::peers::StaleHeartbeat;
use super::super::timing::{HEARTBEAT, LEFT_BEHIND, REMOVING_TURN, TURN, TURNS};
use super::AgentState;
use super::claims::Claimed;
use super::takeover::Availability;

impl AgentState {
    /// Forgets state that no longer matters.
    pub(super) fn tidy(&mut self, now: Instant) {
        let ended = |since: Instant| now >= since + HEARTBEAT.lease;
        self.claims.retain(|_, claimed| !matches!(claimed, Claimed::Deleted { since, .. } if ended(*since)));
        let nodes: BTreeSet<&str> = self.claims.values().filter_map(Claimed::node).collect();
        self.peers.forget_missing(|node| nodes.contains(node));
        self.heartbeat_retry_at.retain(|_, retry_at| now < *retry_at);
        self.claiming.retain(|_, last| now < *last + TURN * TURNS);
        let (assignments, claims, desired, observed) = (&self.assignments, &self.claims, &self.desired, &self.observed);
        self.histories.retain(|address, history| {
            if assignments.contains_key(address) {
                history.unassigned_since = None;
            }
            assignments.contains_key(address)
                || claims.contains_key(address)
                || desired.held.contains_key(address)
                || observed.number <= history.held_in
                || observed.addresses.contains(address)
        });
    }

    /// Removes Leases that have no holder and are no longer needed.
    pub(super) fn remove_leases(&mut self, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        let Some(term) = self.term.clone() else { return };
        let unassigned: Vec<IpAddr> =
            self.claims.keys().filter(|address| !self.assignments.contains_key(*address)).copied().collect();
        for address in unassigned {
            let history = self.histories.entry(address).or_default();
            let since = *history.unassigned_since.get_or_insert(deadline.now);
            let gave_back = history.gave_back;
            let Some(Claimed::Stored { lease, holder }) = self.claims.get(&address) else { continue };
            let due = if gave_back && holder.is_none() {
                since
            } else if self.availability(address, &term, deadline.now) == Availability::Free {
                let name = lease.metadata.name.as_deref().unwrap_or_default();
                since + LEFT_BEHIND + REMOVING_TURN * self.turn(name, deadline.now)
            } else {
                continue;
            };
            if deadline.is_due(due) && self.may_write(address, deadline) {
                let subject = Subject::Address(address);
                writes.push(LeaseWrite { subject, kind: WriteKind::Remove, lease: lease.clone() });
            }
        }
        let nodes: BTreeSet<&str> = self.claims.values().filter_map(Claimed::node).collect();
        for StaleHeartbeat { node, lease, since } in self.peers.forgotten(deadline.now) {
            if !nodes.contains(node.as_str()) && self.may_write_heartbeat(&node, since, REMOVING_TURN, deadline) {
                writes.push(LeaseWrite { subject: Subject::Node(node), kind: WriteKind::Remove, lease });
            }
        }
    }
}
