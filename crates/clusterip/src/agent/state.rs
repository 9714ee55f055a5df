//! Decides which addresses this agent holds and which Leases it writes, from the events that it was given. Uses no
//! clock and sends no requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::agent_plan::{DesiredState, Hold, LeaseWrite, ObservedState, Plan, Subject, WriteKind, WriteOutcome};
use super::assignments::Assignments;
use super::balance::preference_order;
use super::external_claims::{Claim, lease, node_of as node_of_identity};
use super::heartbeat_state::{Term, given_back, put_back};
use super::next_deadline::NextDeadline;
use super::peers::{MissingHeartbeat, Peers, StaleHeartbeat, TermState, node_of};
use super::rendezvous::order_for;
use super::timing::{
    AWAY, ENDING_TURN, HEARTBEAT, LEFT_BEHIND, LONGEST_AWAY, MOST_WRITES, REMOVING_TURN, RETRY_PAUSE, SETTLE, TURN,
    TURNS,
};
use super::version::Version;
use crate::controller::identity::Identity;

#[derive(Clone, Debug)]
enum Claimed {
    There {
        lease: Box<Lease>,
        holder: Option<Identity>,
    },
    /// The claim was deleted, but not given back. Its holder counts as the holder for the duration of a heartbeat,
    /// because it may not have noticed the deletion yet.
    Deleted {
        holder: Identity,
        since: Instant,
    },
}

/// The history of an address that later plans need.
#[derive(Clone, Debug, Default)]
struct Note {
    /// When the address became free for any agent; `None` if it is not free.
    free: Option<Instant>,
    /// The time before which no write is retried.
    again: Option<Instant>,
    /// When the address became unassigned; `None` if it is assigned.
    unassigned: Option<Instant>,
    /// Whether this agent gave the address back and therefore has to remove the claim.
    gave_back: bool,
    /// The number of the last plan that held the address.
    held_in: u64,
    /// Until when the address is left to other nodes, because this node could not hold it.
    away: Option<Instant>,
    /// How often this node could not hold the address recently.
    strikes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Any agent may take the address.
    Free,
    /// Another agent holds the address, or may hold it.
    Taken,
    /// This agent claimed the address in its current term.
    Ours,
}

/// The state of an agent: its own term, its peers, the claims and the assignments.
pub(super) struct AgentState {
    node: String,
    started: Instant,
    listed: bool,
    stopping: bool,
    term: Option<Term>,
    assignments: Arc<Assignments>,
    peers: Peers,
    claims: BTreeMap<IpAddr, Claimed>,
    /// The addresses that this agent claimed in this term and whose claims the API server has confirmed.
    mine: BTreeSet<IpAddr>,
    notes: BTreeMap<IpAddr, Note>,
    /// When each node last claimed an address. Such a node may be about to claim more.
    claiming: BTreeMap<String, Instant>,
    /// The Nodes whose heartbeats could not be written, with the time before which the write is not retried.
    again: BTreeMap<String, Instant>,
    busy: BTreeSet<Subject>,
    observed: ObservedState,
    desired: DesiredState,
}

impl AgentState {
    pub(super) fn new(node: &str, now: Instant) -> Self {
        Self {
            node: node.to_owned(),
            started: now,
            listed: false,
            stopping: false,
            term: None,
            assignments: Arc::default(),
            peers: Peers::default(),
            claims: BTreeMap::new(),
            mine: BTreeSet::new(),
            notes: BTreeMap::new(),
            claiming: BTreeMap::new(),
            again: BTreeMap::new(),
            busy: BTreeSet::new(),
            observed: ObservedState::default(),
            desired: DesiredState::default(),
        }
    }

    /// Sets the current term of this agent.
    pub(super) fn set_term(&mut self, term: Option<Term>) {
        let identity = |term: &Option<Term>| term.as_ref().map(|term| term.identity.clone());
        if identity(&term) != identity(&self.term) {
            self.mine.clear();
        }
        self.term = term;
    }

    /// Sets which nodes may hold which addresses.
    pub(super) fn assign(&mut self, assignments: Arc<Assignments>) {
        self.assignments = assignments;
    }

    /// Sets the observed state of the network.
    pub(super) fn set_observed(&mut self, observed: ObservedState) {
        self.observed = observed;
    }

    /// From now on plans hold no address and write no Lease.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Adds or updates a Lease.
    pub(super) fn see(&mut self, lease: &Lease, now: Instant) {
        if node_of(lease).is_some() {
            return self.peers.see(lease, now);
        }
        let Some(Claim { address, holder }) = Claim::of(lease) else { return };
        if let Some(Claimed::There { lease: known, .. }) = self.claims.get(&address) {
            let (known, version) = (Version::of(known), Version::of(lease));
            if known == version || version.is_older_than(&known) {
                return;
            }
        }
        if let Some(node) = holder.as_ref().and_then(node_of_identity) {
            self.claiming.insert(node.to_owned(), now);
        }
        self.claims.insert(address, Claimed::There { lease: Box::new(lease.clone()), holder });
        self.check(address);
    }

    /// Records that a Lease was deleted.
    pub(super) fn gone(&mut self, lease: &Lease, now: Instant) {
        if node_of(lease).is_some() {
            return self.peers.gone(lease, now);
        }
        let Some(Claim { address, .. }) = Claim::of(lease) else { return };
        if let Some(Claimed::There { lease: known, .. }) = self.claims.get(&address)
            && Version::of(known).uid == Version::of(lease).uid
        {
            self.claim_gone(address, now);
        }
    }

    /// Replaces the recorded state with a complete list of Leases.
    pub(super) fn only(&mut self, leases: &[Lease], now: Instant) {
        let (heartbeats, claims): (Vec<Lease>, Vec<Lease>) =
            leases.iter().cloned().partition(|lease| node_of(lease).is_some());
        self.peers.only(&heartbeats, now);
        let listed: BTreeSet<IpAddr> = claims.iter().filter_map(Claim::of).map(|claim| claim.address).collect();
        let missing: Vec<IpAddr> = self.claims.keys().filter(|address| !listed.contains(address)).copied().collect();
        for address in missing {
            self.claim_gone(address, now);
        }
        for lease in &claims {
            self.see(lease, now);
        }
        self.listed = true;
    }

    fn claim_gone(&mut self, address: IpAddr, now: Instant) {
        let Some(Claimed::There { holder, .. }) = self.claims.get(&address) else { return };
        match holder.clone() {
            Some(holder) => drop(self.claims.insert(address, Claimed::Deleted { holder, since: now })),
            None => drop(self.claims.remove(&address)),
        }
        self.check(address);
    }

    /// Stops holding an address whose claim no longer names this agent.
    fn check(&mut self, address: IpAddr) {
        if self.mine.contains(&address) && !self.is_claimed_here(address) {
            tracing::error!(%address, "another program changed the claim of this address: releasing it");
            self.mine.remove(&address);
        }
    }

    fn is_claimed_here(&self, address: IpAddr) -> bool {
        matches!((self.claims.get(&address), &self.term),
            (Some(Claimed::There { holder: Some(holder), .. }), Some(term)) if *holder == term.identity)
    }

    /// Records the outcome of a write.
    pub(super) fn done(&mut self, write: &LeaseWrite, outcome: WriteOutcome, now: Instant) {
        self.busy.remove(&write.subject);
        match (write.kind, outcome) {
            (
                WriteKind::Claim | WriteKind::GiveBack | WriteKind::End | WriteKind::PutBack,
                WriteOutcome::Written(lease),
            ) => {
                self.see(&lease, now);
                if let (WriteKind::Claim, Subject::Address(address)) = (write.kind, &write.subject)
                    // The term in which the claim was written may have ended.
                    && self.term.as_ref().is_some_and(|term| now < term.until)
                    && self.is_claimed_here(*address)
                {
                    self.mine.insert(*address);
                }
            }
            (WriteKind::Remove, WriteOutcome::Written(_) | WriteOutcome::Gone) => match &write.subject {
                Subject::Address(address) => drop(self.claims.remove(address)),
                Subject::Node(_) => self.peers.gone(&write.lease, now),
            },
            (_, WriteOutcome::Gone) => self.gone(&write.lease, now),
            (_, WriteOutcome::Changed | WriteOutcome::Unclear) => match &write.subject {
                Subject::Address(address) => self.notes.entry(*address).or_default().again = Some(now + RETRY_PAUSE),
                Subject::Node(node) => drop(self.again.insert(node.clone(), now + RETRY_PAUSE)),
            },
        }
    }

    /// Decides what to do now. Each write counts as in flight until [`Self::done`] is called for it.
    pub(super) fn plan(&mut self, now: Instant, clock: Timestamp) -> Plan {
        if self.term.as_ref().is_none_or(|term| now >= term.until) {
            self.mine.clear();
        }
        self.tidy(now);
        let given_up = self.give_up(now);
        self.hold(now);
        let mut deadline = NextDeadline { now, earliest: self.peers.next_change(now) };
        let mut writes = Vec::new();
        if let Some(term) = self.term.clone().filter(|term| now < term.until && !self.stopping) {
            deadline.add(term.until);
            self.give_back(&term, clock, &mut deadline, &mut writes);
            if self.listed {
                self.end_silent(clock, &mut deadline, &mut writes);
                self.claim(&term, clock, &mut deadline, &mut writes);
                self.remove(&mut deadline, &mut writes);
            }
        }
        writes.truncate(MOST_WRITES.saturating_sub(self.busy.len()));
        for write in &writes {
            self.busy.insert(write.subject.clone());
            if let (WriteKind::GiveBack, Subject::Address(address)) = (write.kind, &write.subject) {
                // Until the write is answered, it is unknown whether the claim still names this agent.
                self.mine.remove(address);
                self.notes.entry(*address).or_default().gave_back = true;
            }
        }
        Plan { desired: self.desired.clone(), writes, given_up, replan_at: deadline.earliest }
    }

    /// Forgets state that no longer matters, and waits for the heartbeat of every node that claims an address
    /// without having one.
    fn tidy(&mut self, now: Instant) {
        let ended = |since: Instant| now >= since + HEARTBEAT.lease;
        self.claims.retain(|_, claimed| !matches!(claimed, Claimed::Deleted { since, .. } if ended(*since)));
        let nodes: BTreeSet<&str> = self.claims.values().filter_map(Claimed::node).collect();
        for node in &nodes {
            self.peers.expect(node, now);
        }
        self.peers.forget_missing(|node| nodes.contains(node));
        self.again.retain(|_, again| now < *again);
        self.claiming.retain(|_, last| now < *last + TURN * TURNS);
        let (assignments, claims, desired, observed) = (&self.assignments, &self.claims, &self.desired, &self.observed);
        self.notes.retain(|address, note| {
            note.unassigned = if assignments.contains_key(address) { None } else { note.unassigned };
            assignments.contains_key(address)
                || claims.contains_key(address)
                || desired.held.contains_key(address)
                || observed.number <= note.held_in
                || observed.addresses.contains(address)
        });
    }

    /// Leaves addresses that the network of this node can't hold to other nodes for a while, and returns them. If no
    /// other living node may hold an address, this node goes on trying. The time doubles with each failure, so that an
    /// address that no node can hold moves ever more rarely.
    fn give_up(&mut self, now: Instant) -> Vec<IpAddr> {
        let failing = self.observed.failing.iter().copied();
        let failing =
            failing.filter(|address| self.desired.held.contains_key(address) && self.is_wanted(*address, now));
        let given_up: Vec<IpAddr> = failing.filter(|address| self.has_others(*address, now)).collect();
        for address in &given_up {
            let note = self.notes.entry(*address).or_default();
            if note.away.is_none_or(|away| now >= away + LONGEST_AWAY) {
                note.strikes = 0;
            }
            let away = AWAY.saturating_mul(2_u32.saturating_pow(note.strikes)).min(LONGEST_AWAY);
            note.away = Some(now + away);
            note.strikes = note.strikes.saturating_add(1);
        }
        given_up
    }

    /// Whether another living node may hold the address.
    fn has_others(&self, address: IpAddr, now: Instant) -> bool {
        let Some(assigned) = self.assignments.get(&address) else { return false };
        self.peers.live(now).any(|node| node != self.node && assigned.nodes.contains(node))
    }

    /// Until when the address is left to other nodes; `None` if it is not, or if no other node may hold it.
    fn away(&self, address: IpAddr, now: Instant) -> Option<Instant> {
        let away = self.notes.get(&address).and_then(|note| note.away).filter(|away| now < *away);
        away.filter(|_| self.has_others(address, now))
    }

    /// Until when this node does not claim the address: either it could not hold this address, or it holds no address
    /// and could not hold another one. `None` if it may claim the address.
    fn left_to_others(&self, address: IpAddr, now: Instant) -> Option<Instant> {
        let of_node = || {
            let some = self.mine.is_empty() && self.has_others(address, now);
            let away = self.notes.values().filter_map(|note| note.away).filter(|away| now < *away).max();
            away.filter(|_| some)
        };
        self.away(address, now).or_else(of_node)
    }

    fn is_wanted(&self, address: IpAddr, now: Instant) -> bool {
        let assigned = self.assignments.get(&address).is_some_and(|assigned| assigned.nodes.contains(&self.node));
        !self.stopping && assigned && self.away(address, now).is_none()
    }

    fn hold(&mut self, now: Instant) {
        let mut held = BTreeMap::new();
        if let Some(term) = &self.term {
            for address in self.mine.iter().filter(|address| self.is_wanted(**address, now)) {
                if let Some(assignment) = self.assignments.get(address) {
                    held.insert(*address, Hold { ports: assignment.ports.clone(), until: term.until });
                }
            }
        }
        if held != self.desired.held {
            self.desired = DesiredState { number: self.desired.number + 1, held };
        }
        for address in self.desired.held.keys() {
            self.notes.entry(*address).or_default().held_in = self.desired.number;
        }
    }

    /// Whether the address is certainly not on the network: the network has applied a desired state without it.
    fn is_off(&self, address: IpAddr) -> bool {
        let held_in = self.notes.get(&address).map_or(0, |note| note.held_in);
        held_in == 0 || self.observed.number > held_in && !self.observed.addresses.contains(&address)
    }

    /// Whether the claim of the address may be written now.
    fn may_write(&self, address: IpAddr, deadline: &mut NextDeadline) -> bool {
        let again = self.notes.get(&address).and_then(|note| note.again);
        !self.busy.contains(&Subject::Address(address)) && again.is_none_or(|again| deadline.is_due(again))
    }

    /// Gives back the addresses that were claimed in this term and are no longer assigned to this node, once they
    /// are off the network.
    fn give_back(&self, term: &Term, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
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
    fn end_silent(&self, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
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

    fn claim(&mut self, term: &Term, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
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
    fn remove(&mut self, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
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

impl Claimed {
    /// The Lease; `None` if it was deleted.
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::There { lease, .. } => Some(lease),
            Self::Deleted { .. } => None,
        }
    }

    /// The node that the claim names or, if it was deleted, named.
    fn node(&self) -> Option<&str> {
        match self {
            Self::There { holder, .. } => holder.as_ref().and_then(node_of_identity),
            Self::Deleted { holder, .. } => node_of_identity(holder),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
