//! Decides which addresses this agent holds and which Leases it writes, from the events that it was given. Uses no
//! clock and sends no requests.
//!
//! An agent takes an address like this:
//! 1. The heartbeat of a dead agent becomes silent. A living agent ends that heartbeat (`end_silent`), so that its
//!    owner can't renew it any more: the term is over.
//! 2. The addresses that were claimed in this term are now free (`Availability`).
//! 3. The agent that is preferred for a free address claims it (`claim`), and each further agent one turn later.
//!
//! An agent gives an address back in three steps: the desired state no longer contains the address, the network
//! releases it, and only then the agent writes a claim without a holder. If this node could not hold the address, the
//! agent leaves it to other nodes for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::assignments::{Assignments, Port, is_before, preference_order};
use crate::claims::{HolderClaim, holder_lease};
use crate::heartbeat_state::{Term, given_back, put_back};
use crate::leases::{Identity, Version};
use crate::peers::{Peers, StaleHeartbeat, TermState};
use crate::timing::{
    AWAY, BUSY, ENDING_TURN, LEFT_BEHIND, LONGEST_HEARTBEAT, MAX_TIME_AWAY, MAX_WRITES, NextDeadline, PASSED_OVER,
    REMOVING_TURN, RETRY_PAUSE, SETTLE, TURN, TURNS, UNTAKEN,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub ports: Arc<[Port]>,
    pub until: Instant,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The number of this desired state: it grows with each change.
    pub number: u64,
    pub held: BTreeMap<IpAddr, Hold>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedState {
    /// The last desired state that the reconciler has begun to apply: what it lacks is released or in `addresses`.
    pub number: u64,
    pub addresses: BTreeSet<IpAddr>,
    pub failing: BTreeSet<IpAddr>,
}

/// The subject of a write. At most one write for each subject is in flight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Address(IpAddr),
    Node(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct LeaseWrite {
    pub subject: Subject,
    pub kind: WriteKind,
    /// The Lease to replace, if it has a resource version, to create otherwise, or to delete ([`WriteKind::Remove`]).
    pub lease: Box<Lease>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Claim,
    GiveBack,
    /// A claim or a heartbeat without a holder is deleted.
    Remove,
    End,
    PutBack,
}

#[derive(Clone, Debug, PartialEq)]
pub enum WriteOutcome {
    Written(Box<Lease>),
    Gone,
    Changed,
    Unclear,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub desired: DesiredState,
    pub writes: Vec<LeaseWrite>,
    /// The addresses that this agent stops holding because another program changed their claims since the last plan.
    pub lost: Vec<IpAddr>,
    /// The addresses that are left to other nodes from now on, because this node can't hold them.
    pub given_up: Vec<IpAddr>,
    pub replan_at: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
struct AddressHistory {
    /// When the address became free for any agent; `None` if it is not free.
    free_since: Option<Instant>,
    /// When the address became unassigned; `None` if it is assigned.
    unassigned_since: Option<Instant>,
    /// Whether this agent gave the address back and therefore has to remove the claim.
    gave_back: bool,
    /// The number of the last plan that held the address.
    held_in: u64,
    /// Until when the address is left to other nodes, because this node could not hold it.
    left_to_others_until: Option<Instant>,
    failures: u32,
}

#[derive(Clone, Debug)]
struct Claimed {
    /// `None` if the claim was given back.
    holder: Option<Identity>,
    /// The Lease, or when it was deleted: its holder may not have noticed that for the duration of a heartbeat.
    lease: Result<Box<Lease>, Instant>,
}

impl Claimed {
    fn lease(&self) -> Option<&Lease> {
        self.lease.as_deref().ok()
    }

    /// The node that the claim names or, if it was deleted, named.
    fn node(&self) -> Option<&str> {
        self.holder.as_ref().and_then(Identity::agent_node)
    }

    fn is_of(&self, term: &Term) -> bool {
        self.lease.is_ok() && self.holder.as_ref() == Some(&term.identity)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    Free,
    Taken,
    Ours,
}

#[derive(Default)]
pub struct AgentState {
    node: String,
    /// When this agent may claim free addresses; `None` stands for any time.
    settled: Option<Instant>,
    listed: bool,
    /// From now on plans hold no address and write no Lease.
    pub stopping: bool,
    term: Option<Term>,
    pub assignments: Arc<Assignments>,
    peers: Peers,
    claims: BTreeMap<IpAddr, Claimed>,
    /// The addresses that this agent claimed in this term and whose claims the API server has confirmed.
    mine: BTreeSet<IpAddr>,
    /// The addresses of `mine` whose claims another program changed since the last plan.
    lost: Vec<IpAddr>,
    histories: BTreeMap<IpAddr, AddressHistory>,
    /// When each node last claimed an address. Such a node may be about to claim more.
    claiming: BTreeMap<String, Instant>,
    /// The subjects that are not written now: until this time after a failed write, or while a write is in flight.
    blocked: BTreeMap<Subject, Option<Instant>>,
    pub observed: ObservedState,
    desired: DesiredState,
}

impl AgentState {
    pub fn new(node: &str, now: Instant) -> Self {
        Self { node: node.to_owned(), settled: Some(now + SETTLE), ..Self::default() }
    }

    pub fn set_term(&mut self, term: Option<Term>) {
        let identity = |term: &Option<Term>| term.as_ref().map(|term| term.identity.clone());
        if identity(&term) != identity(&self.term) {
            self.mine.clear();
        }
        self.term = term;
    }

    pub fn apply(&mut self, lease: &Lease, now: Instant) {
        self.peers.apply(lease, now);
        let Some(HolderClaim { address, holder }) = HolderClaim::of(lease) else { return };
        let known = self.claims.get(&address).and_then(Claimed::lease);
        if known.is_some_and(|known| Version::of(lease).is_known_beside(&Version::of(known))) {
            return;
        }
        self.claiming.extend(holder.as_ref().and_then(Identity::agent_node).map(|node| (node.to_owned(), now)));
        self.claims.insert(address, Claimed { holder, lease: Ok(Box::new(lease.clone())) });
        self.check(address);
    }

    pub fn delete(&mut self, lease: &Lease, now: Instant) {
        self.peers.delete(lease, now);
        let Some(HolderClaim { address, .. }) = HolderClaim::of(lease) else { return };
        let known = self.claims.get(&address).and_then(Claimed::lease);
        if known.is_some_and(|known| known.metadata.uid == lease.metadata.uid) {
            self.claim_gone(address, now);
        }
    }

    pub fn replace_all(&mut self, leases: &[Lease], now: Instant) {
        self.peers.replace_all(leases, now);
        let listed: BTreeSet<IpAddr> = leases.iter().filter_map(HolderClaim::of).map(|claim| claim.address).collect();
        let missing: Vec<IpAddr> = self.claims.keys().filter(|address| !listed.contains(address)).copied().collect();
        for address in missing {
            self.claim_gone(address, now);
        }
        for lease in leases {
            self.apply(lease, now);
        }
        self.listed = true;
    }

    pub fn written(&mut self, write: &LeaseWrite, outcome: WriteOutcome, now: Instant) {
        self.blocked.remove(&write.subject);
        match (write.kind, outcome) {
            (WriteKind::Remove, WriteOutcome::Written(_) | WriteOutcome::Gone) => match &write.subject {
                Subject::Address(address) => drop(self.claims.remove(address)),
                Subject::Node(_) => self.peers.delete(&write.lease, now),
            },
            (_, WriteOutcome::Written(lease)) => {
                self.apply(&lease, now);
                if let (WriteKind::Claim, Subject::Address(address)) = (write.kind, &write.subject)
                    // The term in which the claim was written may have ended.
                    && self.term.as_ref().is_some_and(|term| now < term.until)
                    && self.is_claimed_here(*address)
                {
                    self.mine.insert(*address);
                }
            }
            (_, WriteOutcome::Gone) => self.delete(&write.lease, now),
            (_, WriteOutcome::Changed | WriteOutcome::Unclear) => {
                self.blocked.insert(write.subject.clone(), Some(now + RETRY_PAUSE));
            }
        }
    }

    /// Decides what to do now. Each write counts as in flight until [`Self::written`] is called for it.
    pub fn plan(&mut self, now: Instant, clock: Timestamp) -> Plan {
        if self.term.as_ref().is_none_or(|term| now >= term.until) {
            self.mine.clear();
        }
        self.tidy(now);
        for node in self.claims.values().filter_map(Claimed::node) {
            self.peers.expect(node, now);
        }
        let given_up = self.give_up(now);
        self.hold(now);
        let mut deadline = NextDeadline { now, earliest: self.peers.next_change(now) };
        let mut writes = Vec::new();
        if let Some(term) = self.term.clone().filter(|term| now < term.until && !self.stopping) {
            deadline.add(term.until);
            self.give_back(&term, clock, &mut deadline, &mut writes);
            if self.listed {
                // Addresses wait for no other Leases, of which there may be many.
                self.claim(&term, clock, &mut deadline, &mut writes);
                self.end_silent(clock, &mut deadline, &mut writes);
                self.remove_leases(&mut deadline, &mut writes);
            }
        }
        let in_flight = self.blocked.values().filter(|until| until.is_none()).count();
        writes.truncate(MAX_WRITES.saturating_sub(in_flight));
        for write in &writes {
            self.blocked.insert(write.subject.clone(), None);
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
                    held.insert(*address, Hold { ports: Arc::clone(&assignment.ports), until: term.until });
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

    fn claim_gone(&mut self, address: IpAddr, now: Instant) {
        match self.claims.get_mut(&address) {
            Some(Claimed { holder: Some(_), lease }) if lease.is_ok() => *lease = Err(now),
            Some(Claimed { holder: None, .. }) => drop(self.claims.remove(&address)),
            _ => return,
        }
        self.check(address);
    }

    /// Stops holding an address whose claim no longer names this agent.
    fn check(&mut self, address: IpAddr) {
        if self.mine.contains(&address) && !self.is_claimed_here(address) {
            self.mine.remove(&address);
            self.lost.push(address);
        }
    }

    fn is_claimed_here(&self, address: IpAddr) -> bool {
        let (claimed, term) = (self.claims.get(&address), self.term.as_ref());
        claimed.zip(term).is_some_and(|(claimed, term)| claimed.is_of(term))
    }

    /// Puts missing heartbeats back, and ends silent ones, first those of nodes for whose addresses others wait.
    fn end_silent(&self, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        let live: Vec<&str> = self.peers.live(deadline.now).collect();
        for (node, since) in self.peers.missing(deadline.now) {
            if self.may_write_heartbeat(node, since + ENDING_TURN * self.turn(node, &live), deadline) {
                let (subject, lease) = (Subject::Node(node.to_owned()), Box::new(put_back(node, clock)));
                writes.push(LeaseWrite { subject, kind: WriteKind::PutBack, lease });
            }
        }
        let claiming = self.claiming_nodes();
        let mut silent: Vec<StaleHeartbeat> = self.peers.silent(deadline.now).collect();
        silent.sort_by_key(|heartbeat| (!claiming.contains(heartbeat.node.as_str()), heartbeat.since));
        for StaleHeartbeat { node, lease, since } in silent {
            if self.may_write_heartbeat(&node, since + ENDING_TURN * self.turn(&node, &live), deadline) {
                let lease = Box::new(given_back(&node, &lease, clock));
                writes.push(LeaseWrite { subject: Subject::Node(node), kind: WriteKind::End, lease });
            }
        }
    }

    fn availability(&self, address: IpAddr, term: &Term, now: Instant) -> Availability {
        let is_over = |holder: &Identity| match holder.agent_node() {
            // The holder is not an agent, or it is this node in an earlier term.
            None => true,
            Some(node) => node == self.node || self.peers.term_state(node, holder, now) == TermState::Over,
        };
        match self.claims.get(&address) {
            Some(claimed) if claimed.is_of(term) => Availability::Ours,
            Some(Claimed { holder: Some(holder), .. }) if !is_over(holder) => Availability::Taken,
            _ => Availability::Free,
        }
    }

    fn claim(&mut self, term: &Term, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        let mut free = BTreeSet::new();
        let mut due = Vec::new();
        let assignments = Arc::clone(&self.assignments);
        for address in assignments.keys() {
            let availability = self.availability(*address, term, deadline.now);
            if let Some(Claimed { lease: Err(since), .. }) = self.claims.get(address) {
                deadline.add(*since + LONGEST_HEARTBEAT);
            }
            let history = self.histories.entry(*address).or_default();
            match availability {
                Availability::Free => {
                    history.free_since.get_or_insert(deadline.now);
                    free.insert(*address);
                    continue;
                }
                // The answer to the write of this claim was lost, and only a confirmed claim counts.
                Availability::Ours if !self.mine.contains(address) => due.push((*address, Duration::ZERO)),
                Availability::Ours | Availability::Taken => {}
            }
            history.free_since = None;
        }
        let settled = self.settled.unwrap_or(deadline.now);
        if !free.is_empty() && deadline.is_due(settled) {
            let holders =
                self.claims.iter().filter_map(|(address, claimed)| Some((*address, claimed.node()?))).collect();
            let live = self.peers.live(deadline.now).chain([self.node.as_str()]).collect();
            for (address, order) in preference_order(&assignments, &live, &holders, &free) {
                let Some(turn) = order.iter().position(|node| *node == self.node) else { continue };
                // The turns of preferred nodes begin when they could claim the address, or soon after that at their last
                // claim.
                let free_since = self.histories.get(&address).and_then(|history| history.free_since);
                let free_since = free_since.unwrap_or(deadline.now).max(settled);
                let busy = order.iter().take(turn).filter_map(|node| self.claiming.get(*node)).max();
                let since = busy.map_or(free_since, |busy| (*busy).clamp(free_since, free_since + BUSY));
                let turn = u32::try_from(turn).unwrap_or(u32::MAX).min(TURNS);
                if deadline.is_due(since + TURN * turn) {
                    due.push((address, TURN * turn));
                }
            }
        }
        for (address, turn) in &due {
            let history = self.histories.entry(*address).or_default();
            if let Some((until, since)) = history.left_to_others_until.zip(history.free_since)
                && deadline.is_due(since + UNTAKEN + *turn)
            {
                history.left_to_others_until = Some(until.min(deadline.now));
            }
        }
        // A tenant can have thousands of addresses, so their histories are looked through once.
        let last_left = self.histories.values().filter_map(|history| history.left_to_others_until).max();
        for (address, _) in due {
            if let Some(until) = self.no_claim_until(address, last_left, deadline.now) {
                deadline.add(until);
                continue;
            }
            if self.is_wanted(address, deadline.now) && self.may_write(&Subject::Address(address), deadline) {
                let before = self.claims.get(&address).and_then(Claimed::lease);
                let lease = Box::new(holder_lease(address, Some(&term.identity), before, clock));
                writes.push(LeaseWrite { subject: Subject::Address(address), kind: WriteKind::Claim, lease });
            }
        }
    }

    /// Gives back the addresses of this term that are no longer assigned to this node and are off the network.
    fn give_back(&self, term: &Term, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        for (address, claimed) in &self.claims {
            if claimed.is_of(term)
                && !self.is_wanted(*address, deadline.now)
                && self.is_off(*address)
                && self.may_write(&Subject::Address(*address), deadline)
            {
                let lease = Box::new(holder_lease(*address, None, claimed.lease(), clock));
                writes.push(LeaseWrite { subject: Subject::Address(*address), kind: WriteKind::GiveBack, lease });
            }
        }
    }

    /// Whether the address is certainly not on the network: the network has applied a desired state without it.
    fn is_off(&self, address: IpAddr) -> bool {
        let held_in = self.histories.get(&address).map_or(0, |history| history.held_in);
        held_in == 0 || self.observed.number > held_in && !self.observed.addresses.contains(&address)
    }

    /// Leaves addresses that the network of this node can't hold to other living nodes, if there are any, and returns
    /// them. The time doubles with each failure, so that an address that no node can hold moves ever more rarely.
    fn give_up(&mut self, now: Instant) -> Vec<IpAddr> {
        let failing = self.observed.failing.iter().copied();
        let failing =
            failing.filter(|address| self.desired.held.contains_key(address) && self.is_wanted(*address, now));
        let given_up: Vec<IpAddr> = failing.filter(|address| self.has_others(*address, now)).collect();
        for address in &given_up {
            let history = self.histories.entry(*address).or_default();
            if history.left_to_others_until.is_none_or(|until| now >= until + MAX_TIME_AWAY) {
                history.failures = 0;
            }
            let time_away = AWAY.saturating_mul(2_u32.saturating_pow(history.failures)).min(MAX_TIME_AWAY);
            history.left_to_others_until = Some(now + time_away);
            history.failures = history.failures.saturating_add(1);
        }
        given_up
    }

    fn has_others(&self, address: IpAddr, now: Instant) -> bool {
        let Some(assigned) = self.assignments.get(&address) else { return false };
        assigned.nodes.iter().any(|node| *node != self.node && self.peers.is_live(node, now))
    }

    /// Until when the address is left to other nodes; `None` if it is not, or if no other node may hold it.
    fn left_to_others_until(&self, address: IpAddr, now: Instant) -> Option<Instant> {
        let until = self.histories.get(&address).and_then(|history| history.left_to_others_until);
        until.filter(|until| now < *until).filter(|_| self.has_others(address, now))
    }

    /// Until when this node does not claim the address: either it could not hold this address, or it holds no address
    /// and could not hold another one, which it leaves to others until `last_left`, and the others have not passed this one
    /// over. `None` if it may claim the address.
    fn no_claim_until(&self, address: IpAddr, last_left: Option<Instant>, now: Instant) -> Option<Instant> {
        let of_node = || {
            let passed_over = self.histories.get(&address)?.free_since? + PASSED_OVER;
            let some = self.mine.is_empty() && self.has_others(address, now);
            last_left.map(|until| until.min(passed_over)).filter(|until| some && now < *until)
        };
        self.left_to_others_until(address, now).or_else(of_node)
    }

    fn may_write(&self, subject: &Subject, deadline: &mut NextDeadline) -> bool {
        match self.blocked.get(subject) {
            None => true,
            Some(None) => false,
            Some(Some(until)) => deadline.is_due(*until),
        }
    }

    fn may_write_heartbeat(&self, node: &str, due: Instant, deadline: &mut NextDeadline) -> bool {
        node != self.node && self.may_write(&Subject::Node(node.to_owned()), deadline) && deadline.is_due(due)
    }

    /// The number of the living agents that come before this one for a task that any agent may do.
    fn turn(&self, name: &str, live: &[&str]) -> u32 {
        // The token of an agent can create thousands of Leases, so no more nodes are compared than count, and heartbeats
        // that are not alive are passed over once in a plan.
        let before = live.iter().filter(|other| is_before(name, other, &self.node));
        u32::try_from(before.take(TURNS as usize).count()).unwrap_or(TURNS)
    }

    fn claiming_nodes(&self) -> BTreeSet<&str> {
        self.claims.values().filter_map(Claimed::node).collect()
    }

    fn tidy(&mut self, now: Instant) {
        self.claims
            .retain(|_, claimed| claimed.lease.as_ref().err().is_none_or(|since| now < *since + LONGEST_HEARTBEAT));
        let nodes: BTreeSet<&str> = self.claims.values().filter_map(Claimed::node).collect();
        self.peers.forget_missing(|node| nodes.contains(node));
        self.blocked.retain(|_, until| until.is_none_or(|until| now < until));
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
    fn remove_leases(&mut self, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        let Some(term) = &self.term else { return };
        for address in self.claims.keys().filter(|address| !self.assignments.contains_key(*address)) {
            self.histories.entry(*address).or_default().unassigned_since.get_or_insert(deadline.now);
        }
        let live: Vec<&str> = self.peers.live(deadline.now).collect();
        for (address, claimed) in &self.claims {
            let history = self.histories.get(address);
            let since = history.and_then(|history| history.unassigned_since);
            let (Some(since), Claimed { lease: Ok(lease), holder }) = (since, claimed) else { continue };
            let due = if holder.is_none() && history.is_some_and(|history| history.gave_back) {
                since
            } else if self.availability(*address, term, deadline.now) == Availability::Free {
                let name = lease.metadata.name.as_deref().unwrap_or_default();
                since + LEFT_BEHIND + REMOVING_TURN * self.turn(name, &live)
            } else {
                continue;
            };
            let subject = Subject::Address(*address);
            if deadline.is_due(due) && self.may_write(&subject, deadline) {
                writes.push(LeaseWrite { subject, kind: WriteKind::Remove, lease: lease.clone() });
            }
        }
        let nodes = self.claiming_nodes();
        for StaleHeartbeat { node, lease, since } in self.peers.forgotten(deadline.now) {
            let due = since + REMOVING_TURN * self.turn(&node, &live);
            if !nodes.contains(node.as_str()) && self.may_write_heartbeat(&node, due, deadline) {
                writes.push(LeaseWrite { subject: Subject::Node(node), kind: WriteKind::Remove, lease });
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
