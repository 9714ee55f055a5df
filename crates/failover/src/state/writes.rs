//! Decides which Leases this agent writes: claims, claims given back, and heartbeats of other nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clusterip_leases::identity::Identity;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::super::agent_plan::{LeaseWrite, Subject, WriteKind};
use super::super::balance::preference_order;
use super::super::external_claims::{lease, node_of as node_of_identity};
use super::super::heartbeat_state::{Term, given_back, put_back};
use super::super::next_deadline::NextDeadline;
use super::super::peers::{MissingHeartbeat, StaleHeartbeat, TermState};
use super::super::rendezvous::order_for;
use super::super::timing::{ENDING_TURN, HEARTBEAT, LEFT_BEHIND, REMOVING_TURN, SETTLE, TURN, TURNS};
use super::{AgentState, Claimed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Any agent may take the address.
    Free,
    /// Another agent holds the address, or may hold it.
    Taken,
    /// This agent claimed the address in its current term.
    Ours,
}

impl AgentState {
    /// Whether the claim of the address may be written now.
    fn may_write(&self, address: IpAddr, deadline: &mut NextDeadline) -> bool {
        let again = self.notes.get(&address).and_then(|note| note.again);
        !self.busy.contains(&Subject::Address(address)) && again.is_none_or(|again| deadline.is_due(again))
    }

    /// Gives back the addresses that were claimed in this term and are no longer assigned to this node, once they
    /// are off the network.
    pub fn give_back(&self, term: &Term, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        for (address, claimed) in &self.claims {
            if let Claimed::There { lease: before, holder: Some(holder) } = claimed
                && *holder == term.identity
                && !self.is_wanted(*address, deadline.now)
                && self.is_off(*address)
                && self.may_write(*address, deadline)
            {
                let lease = Box::new(lease(*address, None, Some(before), clock));
                writes.push(LeaseWrite { subject: Subject::Address(*address), kind: WriteKind::GiveBack, lease });
            }
        }
    }

    /// Ends silent heartbeats, so that their owners can't renew them any more, and puts missing heartbeats back.
    pub fn end_silent(&self, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        for StaleHeartbeat { node, lease, since } in self.peers.silent(deadline.now) {
            if self.may_write_heartbeat(&node, since, ENDING_TURN, deadline) {
                let lease = Box::new(given_back(&lease, clock));
                writes.push(LeaseWrite { subject: Subject::Node(node), kind: WriteKind::End, lease });
            }
        }
        for MissingHeartbeat { node, since } in self.peers.missing(deadline.now) {
            if self.may_write_heartbeat(&node, since, ENDING_TURN, deadline) {
                let lease = Box::new(put_back(&node, clock));
                writes.push(LeaseWrite { subject: Subject::Node(node), kind: WriteKind::PutBack, lease });
            }
        }
    }

    /// Whether this agent may write the heartbeat of another node now. The first agent in the order of turns may write
    /// it from `since` on, and each further agent one `pause` later.
    fn may_write_heartbeat(&self, node: &str, since: Instant, pause: Duration, deadline: &mut NextDeadline) -> bool {
        if node == self.node || self.busy.contains(&Subject::Node(node.to_owned())) {
            return false;
        }
        let due = since + pause * self.turn(node, deadline.now);
        deadline.is_due(self.again.get(node).map_or(due, |again| due.max(*again)))
    }

    /// The number of agents that come before this one for a task that any agent may do.
    fn turn(&self, name: &str, now: Instant) -> u32 {
        let live = self.live(now);
        let turn = order_for(name, live).iter().position(|node| *node == self.node);
        u32::try_from(turn.unwrap_or_default()).unwrap_or(u32::MAX).min(TURNS)
    }

    /// The nodes whose agents are alive, including this one.
    fn live(&self, now: Instant) -> BTreeSet<&str> {
        self.peers.live(now).chain([self.node.as_str()]).collect()
    }

    fn state(&self, address: IpAddr, term: &Term, now: Instant) -> State {
        let is_over = |holder: &Identity| match node_of_identity(holder) {
            // The holder is not an agent, or it is this node in an earlier term.
            None => true,
            Some(node) => node == self.node || self.peers.term_state(node, holder, now) == TermState::Over,
        };
        match self.claims.get(&address) {
            None | Some(Claimed::There { holder: None, .. }) => State::Free,
            Some(Claimed::There { holder: Some(holder), .. }) if *holder == term.identity => State::Ours,
            Some(Claimed::There { holder: Some(holder), .. } | Claimed::Deleted { holder, .. }) if is_over(holder) => {
                State::Free
            }
            Some(_) => State::Taken,
        }
    }

    pub(crate) fn claim(
        &mut self,
        term: &Term,
        clock: Timestamp,
        deadline: &mut NextDeadline,
        writes: &mut Vec<LeaseWrite>,
    ) {
        let mut free = BTreeSet::new();
        let mut due = Vec::new();
        let assignments = Arc::clone(&self.assignments);
        for address in assignments.keys() {
            let state = self.state(*address, term, deadline.now);
            if let Some(Claimed::Deleted { since, .. }) = self.claims.get(address) {
                deadline.add(*since + HEARTBEAT.lease);
            }
            let note = self.notes.entry(*address).or_default();
            match state {
                State::Free => {
                    note.free.get_or_insert(deadline.now);
                    free.insert(*address);
                    continue;
                }
                // The answer to the write of this claim was lost. Only a confirmed claim counts, so it is written
                // again.
                State::Ours if !self.mine.contains(address) => due.push(*address),
                State::Ours | State::Taken => {}
            }
            note.free = None;
        }
        let settled = self.started + SETTLE;
        if !free.is_empty() && deadline.is_due(settled) {
            let holders =
                self.claims.iter().filter_map(|(address, claimed)| Some((*address, claimed.node()?))).collect();
            for (address, order) in preference_order(&assignments, &self.live(deadline.now), &holders, &free) {
                let Some(turn) = order.iter().position(|node| *node == self.node) else { continue };
                // The turns of preferred nodes begin when the address became free and they could claim it, or at
                // their last claim.
                let free = self.notes.get(&address).and_then(|note| note.free).unwrap_or(deadline.now).max(settled);
                let busy = order.iter().take(turn).filter_map(|node| self.claiming.get(*node)).max();
                let since = busy.map_or(free, |busy| free.max(*busy));
                let turn = u32::try_from(turn).unwrap_or(u32::MAX).min(TURNS);
                if deadline.is_due(since + TURN * turn) {
                    due.push(address);
                }
            }
        }
        for address in due {
            if let Some(away) = self.left_to_others(address, deadline.now) {
                deadline.add(away);
                continue;
            }
            if self.is_wanted(address, deadline.now) && self.may_write(address, deadline) {
                let before = self.claims.get(&address).and_then(Claimed::lease);
                let lease = Box::new(lease(address, Some(&term.identity), before, clock));
                writes.push(LeaseWrite { subject: Subject::Address(address), kind: WriteKind::Claim, lease });
            }
        }
    }

    /// Removes Leases that have no holder and are no longer needed.
    pub fn remove(&mut self, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        let Some(term) = self.term.clone() else { return };
        let unassigned: Vec<IpAddr> =
            self.claims.keys().filter(|address| !self.assignments.contains_key(*address)).copied().collect();
        for address in unassigned {
            let note = self.notes.entry(address).or_default();
            let since = *note.unassigned.get_or_insert(deadline.now);
            let gave_back = note.gave_back;
            let Some(Claimed::There { lease, holder }) = self.claims.get(&address) else { continue };
            let due = if gave_back && holder.is_none() {
                since
            } else if self.state(address, &term, deadline.now) == State::Free {
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
