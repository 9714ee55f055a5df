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
mod tests {
    use super::super::assignments::Assignment;
    use super::super::external_claims::EXTERNAL;
    use super::super::rendezvous::order;
    use super::*;
    use crate::cluster::claim_lease::LABEL;
    use crate::controller::identity::Role;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 9, 10));

    fn identity(node: &str) -> Identity {
        Identity::with(node, Role::Agent, 1)
    }

    /// The Lease as the API server returns it.
    fn stored(mut lease: Lease, version: u64) -> Lease {
        lease.metadata.uid.get_or_insert_with(|| format!("uid-{version}"));
        lease.metadata.resource_version = Some(version.to_string());
        lease
    }

    fn heartbeat(node: &str, version: u64) -> Lease {
        let mut lease = put_back(node, Timestamp::UNIX_EPOCH);
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(identity(node).to_string());
        }
        stored(lease, version)
    }

    /// This agent and one other living agent. The test chooses which of the two is preferred for the address.
    struct Test {
        state: AgentState,
        begin: Instant,
        version: u64,
        me: &'static str,
        other: &'static str,
    }

    impl Test {
        fn new(first: bool) -> Self {
            let order = order(ADDRESS, ["a", "b"]);
            let (one, two) = if order == ["a", "b"] { ("a", "b") } else { ("b", "a") };
            let (me, other) = if first { (one, two) } else { (two, one) };
            let begin = Instant::now();
            let mut state = AgentState::new(me, begin);
            state.only(&[heartbeat(me, 1), heartbeat(other, 2)], begin);
            let mut test = Self { state, begin, version: 10, me, other };
            test.assign(&[me, other]);
            test.renew(0);
            test
        }

        fn at(&self, millis: u64) -> Instant {
            self.begin + Duration::from_millis(millis)
        }

        fn assign(&mut self, nodes: &[&str]) {
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            let assignment = Assignment { nodes, ..Assignment::default() };
            self.state.assign(Arc::new([(ADDRESS, assignment)].into()));
        }

        /// Both agents renew their heartbeats.
        fn renew(&mut self, at: u64) {
            self.version += 1;
            let until = self.at(at) + HEARTBEAT.deadline;
            self.state.set_term(Some(Term { identity: identity(self.me), until }));
            let lease =
                stored(Lease { metadata: heartbeat(self.other, 2).metadata, ..heartbeat(self.other, 2) }, self.version);
            self.state.see(&lease, self.at(at));
        }

        fn see_claim(&mut self, holder: Option<&str>, at: u64) {
            self.version += 1;
            let holder = holder.map(identity);
            let mut lease = stored(lease(ADDRESS, holder.as_ref(), None, Timestamp::UNIX_EPOCH), self.version);
            lease.metadata.uid = Some("uid".to_owned());
            self.state.see(&lease, self.at(at));
        }

        fn plan(&mut self, at: u64) -> Plan {
            self.state.plan(self.at(at), Timestamp::UNIX_EPOCH)
        }

        /// The kinds of the writes, and whether the address is held.
        fn planned(&mut self, at: u64) -> (Vec<WriteKind>, bool) {
            let plan = self.plan(at);
            (plan.writes.iter().map(|write| write.kind).collect(), plan.desired.held.contains_key(&ADDRESS))
        }

        /// Expects exactly one write, and carries it out.
        fn carried_out(&mut self, at: u64) -> WriteKind {
            let plan = self.plan(at);
            assert_eq!(plan.writes.len(), 1, "{:?}", plan.writes);
            let write = &plan.writes[0];
            self.version += 1;
            let written = Box::new(stored((*write.lease).clone(), self.version));
            self.state.done(write, WriteOutcome::Written(written), self.at(at));
            write.kind
        }

        fn network_did(&mut self, number: u64, addresses: &[IpAddr]) {
            let addresses = addresses.iter().copied().collect();
            self.state.set_observed(ObservedState { number, addresses, ..ObservedState::default() });
        }
    }

    #[test]
    fn an_agent_claims_an_address_when_it_is_free_and_its_turn() {
        struct Case {
            name: &'static str,
            is_first_choice: bool,
            setup: fn(&mut Test),
            /// When the agent claims the address, in milliseconds.
            claims_at: Option<u64>,
        }
        let never = None;
        let cases = [
            Case {
                name: "the first choice, when it has settled",
                is_first_choice: true,
                setup: |_| {},
                claims_at: Some(3000),
            },
            Case {
                name: "the second leaves it some time",
                is_first_choice: false,
                setup: |_| {},
                claims_at: Some(5000),
            },
            Case {
                name: "more, where the first is at work",
                is_first_choice: false,
                setup: |test| {
                    let busy =
                        lease(IpAddr::from([10, 0, 9, 99]), Some(&identity(test.other)), None, Timestamp::UNIX_EPOCH);
                    test.state.see(&stored(busy, 50), test.at(4000));
                },
                claims_at: Some(6000),
            },
            Case {
                name: "not what another holds",
                is_first_choice: true,
                setup: |test| test.see_claim(Some(test.other), 0),
                claims_at: never,
            },
            Case {
                name: "what was given back",
                is_first_choice: true,
                setup: |test| test.see_claim(None, 0),
                claims_at: Some(3000),
            },
            Case {
                name: "what it held in another term",
                is_first_choice: true,
                setup: |test| {
                    test.see_claim(Some(test.me), 0);
                    let until = test.at(0) + HEARTBEAT.deadline;
                    test.state.set_term(Some(Term { identity: Identity::with(test.me, Role::Agent, 2), until }));
                },
                claims_at: Some(3000),
            },
            Case {
                name: "what none of ours holds",
                is_first_choice: true,
                setup: |test| {
                    let lease = lease(ADDRESS, Some(&Identity::of("somebody")), None, Timestamp::UNIX_EPOCH);
                    test.state.see(&stored(lease, 50), test.at(0));
                },
                claims_at: Some(3000),
            },
            Case {
                name: "what it claimed without hearing so",
                is_first_choice: false,
                setup: |test| test.see_claim(Some(test.me), 0),
                claims_at: Some(0),
            },
            Case {
                name: "not what was deleted by hand",
                is_first_choice: true,
                setup: |test| {
                    test.see_claim(Some(test.other), 0);
                    let gone = stored(lease(ADDRESS, None, None, Timestamp::UNIX_EPOCH), 99);
                    let gone = Lease {
                        metadata: kube::api::ObjectMeta { uid: Some("uid".to_owned()), ..gone.metadata },
                        ..gone
                    };
                    test.state.gone(&gone, test.at(0));
                },
                claims_at: never,
            },
            Case {
                name: "not where it may not hold it",
                is_first_choice: true,
                setup: |test| test.assign(&[test.other]),
                claims_at: never,
            },
            Case {
                name: "not without a term",
                is_first_choice: true,
                setup: |test| test.state.set_term(None),
                claims_at: never,
            },
            Case {
                name: "not when it stops",
                is_first_choice: true,
                setup: |test| test.state.stop(),
                claims_at: never,
            },
        ];
        for Case { name, is_first_choice, setup, claims_at } in cases {
            let mut test = Test::new(is_first_choice);
            setup(&mut test);
            let claims = (0..100).map(|step| step * 100).find(|at| test.planned(*at).0 == [WriteKind::Claim]);
            assert_eq!(claims, claims_at, "{name}");
        }
    }

    #[test]
    fn an_address_is_held_only_after_its_claim_was_answered_in_its_term() {
        let mut test = Test::new(true);
        let plan = test.plan(3000);
        let write = plan.writes[0].clone();
        let labels = write.lease.metadata.labels.clone().unwrap();
        assert_eq!(labels, [(LABEL.to_owned(), EXTERNAL.to_owned())].into());
        assert_eq!(test.planned(3100), (vec![], false), "not before there is an answer");
        let written = || WriteOutcome::Written(Box::new(stored((*write.lease).clone(), 100)));
        struct Case {
            name: &'static str,
            outcome: WriteOutcome,
            answered_at: u64,
            is_held: bool,
        }
        let cases = [
            Case { name: "carried out", outcome: written(), answered_at: 3200, is_held: true },
            Case { name: "too late", outcome: written(), answered_at: 17_000, is_held: false },
            Case { name: "another was faster", outcome: WriteOutcome::Changed, answered_at: 3200, is_held: false },
            Case { name: "without an answer", outcome: WriteOutcome::Unclear, answered_at: 3200, is_held: false },
        ];
        for Case { name, outcome, answered_at, is_held } in cases {
            let mut test = Test::new(true);
            test.plan(3000);
            test.state.done(&write, outcome, test.at(answered_at));
            assert_eq!(test.planned(answered_at).1, is_held, "{name}");
            assert!(!test.planned(17_000).1, "{name}: the term is over");
        }
    }

    #[test]
    fn an_address_is_given_back_only_when_it_is_off_the_network() {
        let mut test = Test::new(true);
        assert_eq!(test.carried_out(3000), WriteKind::Claim);
        let held = test.plan(3100).desired.number;
        test.network_did(held, &[ADDRESS]);
        test.assign(&[test.other]);
        let after = test.plan(3200).desired.number;
        assert_eq!(test.planned(3200), (vec![], false), "it may still come");
        test.network_did(held, &[]);
        assert_eq!(test.planned(3300), (vec![], false), "the network has not heard of it");
        test.network_did(after, &[ADDRESS]);
        assert_eq!(test.planned(3400), (vec![], false), "it is still there");
        test.network_did(after, &[]);
        assert_eq!(test.carried_out(3500), WriteKind::GiveBack);
        assert_eq!(test.planned(3600), (vec![], false), "it is the other's to take");
        // When no node is to hold the address, its claim is removed.
        test.state.assign(Arc::default());
        assert_eq!(test.carried_out(3700), WriteKind::Remove);
        assert_eq!(test.planned(3800), (vec![], false));
    }

    #[test]
    fn a_failing_address_is_left_to_other_nodes_for_longer_each_time() {
        let mut test = Test::new(true);
        let mut at = 3000;
        for away in [60_000, 120_000, 240_000, 480_000, 600_000, 600_000] {
            test.renew(at);
            assert_eq!(test.carried_out(at), WriteKind::Claim);
            let number = test.plan(at).desired.number;
            let (addresses, failing) = ([ADDRESS].into(), [ADDRESS].into());
            test.state.set_observed(ObservedState { number, addresses, failing });
            let plan = test.plan(at);
            assert_eq!((plan.given_up, plan.desired.held.len(), plan.writes), (vec![ADDRESS], 0, vec![]));
            test.network_did(plan.desired.number, &[]);
            assert_eq!(test.carried_out(at), WriteKind::GiveBack);
            test.renew(at + away - 1);
            assert_eq!(test.planned(at + away - 1), (vec![], false), "{away}");
            at += away;
        }
        // A long time later, earlier failures no longer count.
        at += 600_000;
        test.renew(at);
        assert_eq!(test.carried_out(at), WriteKind::Claim);
        let number = test.plan(at).desired.number;
        test.state.set_observed(ObservedState { number, addresses: [ADDRESS].into(), failing: [ADDRESS].into() });
        let number = test.plan(at).desired.number;
        test.network_did(number, &[]);
        assert_eq!(test.carried_out(at), WriteKind::GiveBack);
        test.renew(at + 60_000);
        assert_eq!(test.carried_out(at + 60_000), WriteKind::Claim);
    }

    #[test]
    fn a_failing_address_is_retried_if_no_other_node_can_hold_it() {
        struct Case {
            name: &'static str,
            setup: fn(&mut Test),
            at: u64,
            given_up: usize,
        }
        let cases = [
            Case { name: "another may hold it", setup: |_| {}, at: 3200, given_up: 1 },
            Case { name: "no other may", setup: |test| test.assign(&[test.me]), at: 3200, given_up: 0 },
            Case {
                name: "the other is silent",
                setup: |test| {
                    let until = test.at(30_000) + HEARTBEAT.deadline;
                    test.state.set_term(Some(Term { identity: identity(test.me), until }));
                },
                at: 30_000,
                given_up: 0,
            },
        ];
        for Case { name, setup, at, given_up } in cases {
            let mut test = Test::new(true);
            assert_eq!(test.carried_out(3000), WriteKind::Claim, "{name}");
            let number = test.plan(3100).desired.number;
            setup(&mut test);
            test.state.set_observed(ObservedState { number, addresses: [ADDRESS].into(), failing: [ADDRESS].into() });
            let plan = test.plan(at);
            assert_eq!((plan.given_up.len(), plan.desired.held.len()), (given_up, 1 - given_up), "{name}");
        }
    }

    #[test]
    fn addresses_of_a_silent_agent_are_taken_after_its_heartbeat_was_ended() {
        let mut test = Test::new(true);
        test.see_claim(Some(test.other), 0);
        for at in [5000, 10_000, 15_000] {
            // Only this agent stays alive.
            let until = test.at(at) + HEARTBEAT.deadline;
            test.state.set_term(Some(Term { identity: identity(test.me), until }));
            assert_eq!(test.planned(at), (vec![], false), "{at}");
        }
        assert_eq!(test.planned(19_999), (vec![], false));
        let plan = test.plan(20_000);
        let (write, at) = (plan.writes[0].clone(), test.at(20_000));
        assert_eq!((write.kind, plan.writes.len()), (WriteKind::End, 1));
        let mut renewed = Test::new(true);
        std::mem::swap(&mut renewed.state, &mut test.state);
        (renewed.begin, renewed.version) = (test.begin, 1000);
        // The heartbeat was renewed meanwhile, and this agent does not know yet: nothing is taken.
        renewed.state.done(&write, WriteOutcome::Changed, at);
        assert_eq!(renewed.planned(20_500), (vec![], false));
        let again = renewed.plan(21_000).writes.remove(0);
        assert_eq!(again.kind, WriteKind::End);
        // The heartbeat is ended now.
        let ended = Box::new(stored((*again.lease).clone(), 500));
        renewed.state.done(&again, WriteOutcome::Written(ended), renewed.at(21_100));
        assert_eq!(renewed.carried_out(21_200), WriteKind::Claim);
        assert!(renewed.planned(21_300).1);
    }

    #[test]
    fn a_held_address_is_released_if_its_claim_was_changed_by_others() {
        type Case = fn(&mut Test);
        let rows: [(&str, Case); 3] = [
            ("taken", |test| test.see_claim(Some(test.other), 3200)),
            ("given back", |test| test.see_claim(None, 3200)),
            ("deleted", |test| test.state.only(&[], test.at(3200))),
        ];
        for (name, case) in rows {
            let mut test = Test::new(true);
            test.carried_out(3000);
            assert!(test.planned(3100).1, "{name}");
            test.version = 1000;
            case(&mut test);
            assert!(!test.planned(3200).1, "{name}");
        }
    }
}
