//! Decides which addresses this agent holds and which Leases it writes, from the events that it was given. Uses no
//! clock and sends no requests.
//!
//! - `claims` records which agent has claimed which address.
//! - `takeover` takes free addresses, and those of dead holders; `give_back` gives addresses back. `turns` decides
//!   whether this agent may write a Lease now.
//! - `cleanup` forgets what no plan needs any more, and removes Leases.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

mod claims;
mod cleanup;
mod give_back;
mod takeover;
mod turns;

use self::claims::Claimed;
use super::agent_plan::{DesiredState, Hold, LeaseWrite, ObservedState, Plan, Subject, WriteKind, WriteOutcome};
use super::assignments::Assignments;
use super::heartbeat_state::Term;
use super::next_deadline::NextDeadline;
use super::peers::{Peers, node_of};
use super::timing::{MAX_WRITES, RETRY_PAUSE};

/// The history of an address that later plans need.
#[derive(Clone, Debug, Default)]
struct AddressHistory {
    /// When the address became free for any agent; `None` if it is not free.
    free_since: Option<Instant>,
    /// The time before which the write of the claim is not retried.
    retry_at: Option<Instant>,
    /// When the address became unassigned; `None` if it is assigned.
    unassigned_since: Option<Instant>,
    /// Whether this agent gave the address back and therefore has to remove the claim.
    gave_back: bool,
    /// The number of the last plan that held the address.
    held_in: u64,
    /// Until when the address is left to other nodes, because this node could not hold it.
    left_to_others_until: Option<Instant>,
    /// How often this node could not hold the address recently.
    failures: u32,
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
    /// The addresses of `mine` whose claims another program changed since the last plan.
    lost: Vec<IpAddr>,
    histories: BTreeMap<IpAddr, AddressHistory>,
    /// When each node last claimed an address. Such a node may be about to claim more.
    claiming: BTreeMap<String, Instant>,
    /// The Nodes whose heartbeats could not be written, with the time before which the write is not retried.
    heartbeat_retry_at: BTreeMap<String, Instant>,
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
            lost: Vec::new(),
            histories: BTreeMap::new(),
            claiming: BTreeMap::new(),
            heartbeat_retry_at: BTreeMap::new(),
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
    pub fn apply(&mut self, lease: &Lease, now: Instant) {
        if node_of(lease).is_some() {
            return self.peers.apply(lease, now);
        }
        self.apply_claim(lease, now);
    }

    /// Records that a Lease was deleted.
    pub fn delete(&mut self, lease: &Lease, now: Instant) {
        if node_of(lease).is_some() {
            return self.peers.delete(lease, now);
        }
        self.delete_claim(lease, now);
    }

    /// Replaces the recorded state with a complete list of Leases.
    pub fn replace_all(&mut self, leases: &[Lease], now: Instant) {
        let (heartbeats, claims): (Vec<Lease>, Vec<Lease>) =
            leases.iter().cloned().partition(|lease| node_of(lease).is_some());
        self.peers.replace_all(&heartbeats, now);
        self.replace_all_claims(&claims, now);
        self.listed = true;
    }

    /// Records the outcome of a write.
    pub fn written(&mut self, write: &LeaseWrite, outcome: WriteOutcome, now: Instant) {
        self.busy.remove(&write.subject);
        match (write.kind, outcome) {
            (
                WriteKind::Claim | WriteKind::GiveBack | WriteKind::End | WriteKind::PutBack,
                WriteOutcome::Written(lease),
            ) => {
                self.apply(&lease, now);
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
                Subject::Node(_) => self.peers.delete(&write.lease, now),
            },
            (_, WriteOutcome::Gone) => self.delete(&write.lease, now),
            (_, WriteOutcome::Changed | WriteOutcome::Unclear) => match &write.subject {
                Subject::Address(address) => {
                    self.histories.entry(*address).or_default().retry_at = Some(now + RETRY_PAUSE);
                }
                Subject::Node(node) => drop(self.heartbeat_retry_at.insert(node.clone(), now + RETRY_PAUSE)),
            },
        }
    }

    /// Decides what to do now. Each write counts as in flight until [`Self::written`] is called for it.
    pub fn plan(&mut self, now: Instant, clock: Timestamp) -> Plan {
        if self.term.as_ref().is_none_or(|term| now >= term.until) {
            self.mine.clear();
        }
        self.tidy(now);
        self.expect_heartbeats(now);
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
                self.remove_leases(&mut deadline, &mut writes);
            }
        }
        writes.truncate(MAX_WRITES.saturating_sub(self.busy.len()));
        for write in &writes {
            self.busy.insert(write.subject.clone());
            if let (WriteKind::GiveBack, Subject::Address(address)) = (write.kind, &write.subject) {
                // Until the write is answered, it is unknown whether the claim still names this agent.
                self.mine.remove(address);
                self.histories.entry(*address).or_default().gave_back = true;
            }
        }
        let lost = std::mem::take(&mut self.lost);
        Plan { desired: self.desired.clone(), writes, lost, given_up, replan_at: deadline.earliest }
    }

    fn is_wanted(&self, address: IpAddr, now: Instant) -> bool {
        let assigned = self.assignments.get(&address).is_some_and(|assigned| assigned.nodes.contains(&self.node));
        !self.stopping && assigned && self.left_to_others_until(address, now).is_none()
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
            self.histories.entry(*address).or_default().held_in = self.desired.number;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
