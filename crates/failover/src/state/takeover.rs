//! How an agent takes free addresses, and those of dead holders.
//!
//! 1. The heartbeat of a dead agent becomes silent. A living agent ends that heartbeat (`end_silent`), so that its
//!    owner can't renew it any more: the term is over.
//! 2. The addresses that were claimed in this term are now free (`Availability`).
//! 3. The agent that is preferred for a free address claims it (`claim`), and each further agent one turn
//!    later.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::leases::identity::Identity;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::super::agent_plan::{LeaseWrite, Subject, WriteKind};
use super::super::balance::preference_order;
use super::super::external_claims::{lease, node_of as node_of_identity};
use super::super::heartbeat_state::{Term, given_back, put_back};
use super::super::next_deadline::NextDeadline;
use super::super::peers::{MissingHeartbeat, StaleHeartbeat, TermState};
use super::super::timing::{ENDING_TURN, HEARTBEAT, SETTLE, TURN, TURNS};
use super::AgentState;
use super::claims::Claimed;

/// Whether an agent may claim an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// Any agent may take the address.
    Free,
    /// Another agent holds the address, or may hold it.
    Taken,
    /// This agent claimed the address in its current term.
    Ours,
}

impl AgentState {
    /// Ends silent heartbeats, so that their owners can't renew them any more, and puts missing heartbeats back.
    pub(super) fn end_silent(&self, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
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

    /// Whether the address is free, or claimed by another agent or by this one.
    pub(super) fn availability(&self, address: IpAddr, term: &Term, now: Instant) -> Availability {
        let is_over = |holder: &Identity| match node_of_identity(holder) {
            // The holder is not an agent, or it is this node in an earlier term.
            None => true,
            Some(node) => node == self.node || self.peers.term_state(node, holder, now) == TermState::Over,
        };
        match self.claims.get(&address) {
            None | Some(Claimed::Stored { holder: None, .. }) => Availability::Free,
            Some(Claimed::Stored { holder: Some(holder), .. }) if *holder == term.identity => Availability::Ours,
            Some(Claimed::Stored { holder: Some(holder), .. } | Claimed::Deleted { holder, .. }) if is_over(holder) => {
                Availability::Free
            }
            Some(_) => Availability::Taken,
        }
    }

    /// Claims free addresses when it is the turn of this agent, and writes its own unconfirmed claims again.
    pub(super) fn claim(
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
            let availability = self.availability(*address, term, deadline.now);
            if let Some(Claimed::Deleted { since, .. }) = self.claims.get(address) {
                deadline.add(*since + HEARTBEAT.lease);
            }
            let history = self.histories.entry(*address).or_default();
            match availability {
                Availability::Free => {
                    history.free_since.get_or_insert(deadline.now);
                    free.insert(*address);
                    continue;
                }
                // The answer to the write of this claim was lost. Only a confirmed claim counts, so it is written
                // again.
                Availability::Ours if !self.mine.contains(address) => due.push(*address),
                Availability::Ours | Availability::Taken => {}
            }
            history.free_since = None;
        }
        let settled = self.started + SETTLE;
        if !free.is_empty() && deadline.is_due(settled) {
            let holders =
                self.claims.iter().filter_map(|(address, claimed)| Some((*address, claimed.node()?))).collect();
            for (address, order) in preference_order(&assignments, &self.live(deadline.now), &holders, &free) {
                let Some(turn) = order.iter().position(|node| *node == self.node) else { continue };
                // The turns of preferred nodes begin when the address became free and they could claim it, or at
                // their last claim.
                let free_since = self.histories.get(&address).and_then(|history| history.free_since);
                let free_since = free_since.unwrap_or(deadline.now).max(settled);
                let busy = order.iter().take(turn).filter_map(|node| self.claiming.get(*node)).max();
                let since = busy.map_or(free_since, |busy| free_since.max(*busy));
                let turn = u32::try_from(turn).unwrap_or(u32::MAX).min(TURNS);
                if deadline.is_due(since + TURN * turn) {
                    due.push(address);
                }
            }
        }
        for address in due {
            if let Some(until) = self.no_claim_until(address, deadline.now) {
                deadline.add(until);
                continue;
            }
            if self.is_wanted(address, deadline.now) && self.may_write(address, deadline) {
                let before = self.claims.get(&address).and_then(Claimed::lease);
                let lease = Box::new(lease(address, Some(&term.identity), before, clock));
                writes.push(LeaseWrite { subject: Subject::Address(address), kind: WriteKind::Claim, lease });
            }
        }
    }
}
