//! Decides which addresses this agent holds and which Leases it writes, from the events that it was given. Uses no
//! clock and sends no requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use clusterip_leases::identity::Identity;
use clusterip_leases::version::Version;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

mod writes;

use super::agent_plan::{DesiredState, Hold, LeaseWrite, ObservedState, Plan, Subject, WriteKind, WriteOutcome};
use super::assignments::Assignments;
use super::external_claims::{Claim, node_of as node_of_identity};
use super::heartbeat_state::Term;
use super::next_deadline::NextDeadline;
use super::peers::{Peers, node_of};
use super::timing::{AWAY, HEARTBEAT, MAX_TIME_AWAY, MAX_WRITES, RETRY_PAUSE, TURN, TURNS};

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

/// The state of an agent: its own term, its peers, the claims and the assignments.
pub struct AgentState {
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
    /// The state of an agent that has just started on this node.
    pub fn new(node: &str, now: Instant) -> Self {
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
    pub fn set_term(&mut self, term: Option<Term>) {
        let identity = |term: &Option<Term>| term.as_ref().map(|term| term.identity.clone());
        if identity(&term) != identity(&self.term) {
            self.mine.clear();
        }
        self.term = term;
    }

    /// Sets which nodes may hold which addresses.
    pub fn assign(&mut self, assignments: Arc<Assignments>) {
        self.assignments = assignments;
    }

    /// Sets the observed state of the network.
    pub fn set_observed(&mut self, observed: ObservedState) {
        self.observed = observed;
    }

    /// From now on plans hold no address and write no Lease.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Adds or updates a Lease.
    pub fn see(&mut self, lease: &Lease, now: Instant) {
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
    pub fn gone(&mut self, lease: &Lease, now: Instant) {
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
    pub fn only(&mut self, leases: &[Lease], now: Instant) {
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
    pub fn done(&mut self, write: &LeaseWrite, outcome: WriteOutcome, now: Instant) {
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
    pub fn plan(&mut self, now: Instant, clock: Timestamp) -> Plan {
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
        writes.truncate(MAX_WRITES.saturating_sub(self.busy.len()));
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
            if note.away.is_none_or(|away| now >= away + MAX_TIME_AWAY) {
                note.strikes = 0;
            }
            let away = AWAY.saturating_mul(2_u32.saturating_pow(note.strikes)).min(MAX_TIME_AWAY);
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
