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

use crate::assignments::{Assignments, Port, order_for, preference_order};
use crate::claims::{HolderClaim, holder_lease};
use crate::heartbeat_state::{Term, given_back, put_back};
use crate::leases::{Identity, Version};
use crate::peers::{MissingHeartbeat, Peers, StaleHeartbeat, TermState, node_of};
use crate::timing::{
    AWAY, ENDING_TURN, HEARTBEAT, LEFT_BEHIND, MAX_TIME_AWAY, MAX_WRITES, NextDeadline, REMOVING_TURN, RETRY_PAUSE,
    SETTLE, TURN, TURNS,
};

/// The ports of an address that is held, and the time until which it is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub ports: Arc<[Port]>,
    /// When the address must be released at the latest.
    pub until: Instant,
}

/// The desired state of the network: these addresses are held, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// The number of this desired state: it grows with each change.
    pub number: u64,
    pub held: BTreeMap<IpAddr, Hold>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedState {
    /// The number of the last desired state that the reconciler has begun to apply. Each address that this state no
    /// longer contains is either released or still in `addresses`.
    pub number: u64,
    /// The addresses that may be on the network.
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
    /// The Lease to replace, if it has a resource version, or else to create. For [`WriteKind::Remove`], the Lease to
    /// delete.
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
    /// The write succeeded. Contains the Lease as the API server returned it.
    Written(Box<Lease>),
    Gone,
    Changed,
    Unclear,
}

/// The decision of an agent about its network and the Leases.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub desired: DesiredState,
    pub writes: Vec<LeaseWrite>,
    /// The addresses that this agent stops holding because another program changed their claims since the last plan.
    pub lost: Vec<IpAddr>,
    /// The addresses that are left to other nodes from now on, because this node can't hold them.
    pub given_up: Vec<IpAddr>,
    /// When to plan again if no event arrives before.
    pub replan_at: Option<Instant>,
}

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
#[derive(Default)]
pub struct AgentState {
    node: String,
    /// When this agent may claim free addresses; `None` stands for any time.
    settled: Option<Instant>,
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

    pub fn assign(&mut self, assignments: Arc<Assignments>) {
        self.assignments = assignments;
    }

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

    pub fn written(&mut self, write: &LeaseWrite, outcome: WriteOutcome, now: Instant) {
        self.busy.remove(&write.subject);
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
                // Addresses wait for no other Leases, of which there may be many.
                self.claim(&term, clock, &mut deadline, &mut writes);
                self.end_silent(clock, &mut deadline, &mut writes);
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
}

#[derive(Clone, Debug)]
enum Claimed {
    /// The claim exists. Without a holder, it was given back.
    Stored { lease: Box<Lease>, holder: Option<Identity> },
    /// The claim was deleted, but not given back. Its holder counts as the holder for the duration of a heartbeat,
    /// because it may not have noticed the deletion yet.
    Deleted { holder: Identity, since: Instant },
}

impl Claimed {
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Stored { lease, .. } => Some(lease),
            Self::Deleted { .. } => None,
        }
    }

    /// The node that the claim names or, if it was deleted, named.
    fn node(&self) -> Option<&str> {
        match self {
            Self::Stored { holder, .. } => holder.as_ref().and_then(Identity::agent_node),
            Self::Deleted { holder, .. } => holder.agent_node(),
        }
    }
}

impl AgentState {
    /// Adds or updates a claim.
    fn apply_claim(&mut self, lease: &Lease, now: Instant) {
        let Some(HolderClaim { address, holder }) = HolderClaim::of(lease) else { return };
        let known = self.claims.get(&address).and_then(Claimed::lease);
        if known.is_some_and(|known| Version::of(lease).is_known_beside(&Version::of(known))) {
            return;
        }
        if let Some(node) = holder.as_ref().and_then(Identity::agent_node) {
            self.claiming.insert(node.to_owned(), now);
        }
        self.claims.insert(address, Claimed::Stored { lease: Box::new(lease.clone()), holder });
        self.check(address);
    }

    fn delete_claim(&mut self, lease: &Lease, now: Instant) {
        let Some(HolderClaim { address, .. }) = HolderClaim::of(lease) else { return };
        let known = self.claims.get(&address).and_then(Claimed::lease);
        if known.is_some_and(|known| known.metadata.uid == lease.metadata.uid) {
            self.claim_gone(address, now);
        }
    }

    /// Replaces the recorded claims with a complete list.
    fn replace_all_claims(&mut self, leases: &[Lease], now: Instant) {
        let listed: BTreeSet<IpAddr> = leases.iter().filter_map(HolderClaim::of).map(|claim| claim.address).collect();
        let missing: Vec<IpAddr> = self.claims.keys().filter(|address| !listed.contains(address)).copied().collect();
        for address in missing {
            self.claim_gone(address, now);
        }
        for lease in leases {
            self.apply_claim(lease, now);
        }
    }

    fn claim_gone(&mut self, address: IpAddr, now: Instant) {
        let Some(Claimed::Stored { holder, .. }) = self.claims.get(&address) else { return };
        match holder.clone() {
            Some(holder) => drop(self.claims.insert(address, Claimed::Deleted { holder, since: now })),
            None => drop(self.claims.remove(&address)),
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

    /// Waits from now on for the heartbeat of every node that claims an address without having one.
    fn expect_heartbeats(&mut self, now: Instant) {
        for node in self.claims.values().filter_map(Claimed::node) {
            self.peers.expect(node, now);
        }
    }

    fn is_claimed_here(&self, address: IpAddr) -> bool {
        matches!((self.claims.get(&address), &self.term),
            (Some(Claimed::Stored { holder: Some(holder), .. }), Some(term)) if *holder == term.identity)
    }
}

/// Whether an agent may claim an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Availability {
    Free,
    Taken,
    Ours,
}

impl AgentState {
    /// Puts missing heartbeats back, and ends silent ones, so that their owners can't renew them any more: first those
    /// of nodes that claim addresses, because others wait for these addresses.
    fn end_silent(&self, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        for MissingHeartbeat { node, since } in self.peers.missing(deadline.now) {
            if self.may_write_heartbeat(&node, since, ENDING_TURN, deadline) {
                let lease = Box::new(put_back(&node, clock));
                writes.push(LeaseWrite { subject: Subject::Node(node), kind: WriteKind::PutBack, lease });
            }
        }
        let claiming = self.claiming_nodes();
        let mut silent: Vec<StaleHeartbeat> = self.peers.silent(deadline.now).collect();
        silent.sort_by_key(|heartbeat| (!claiming.contains(heartbeat.node.as_str()), heartbeat.since));
        for StaleHeartbeat { node, lease, since } in silent {
            if self.may_write_heartbeat(&node, since, ENDING_TURN, deadline) {
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
            None | Some(Claimed::Stored { holder: None, .. }) => Availability::Free,
            Some(Claimed::Stored { holder: Some(holder), .. }) if *holder == term.identity => Availability::Ours,
            Some(Claimed::Stored { holder: Some(holder), .. } | Claimed::Deleted { holder, .. }) if is_over(holder) => {
                Availability::Free
            }
            Some(_) => Availability::Taken,
        }
    }

    fn claim(&mut self, term: &Term, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
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
        let settled = self.settled.unwrap_or(deadline.now);
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
                let lease = Box::new(holder_lease(address, Some(&term.identity), before, clock));
                writes.push(LeaseWrite { subject: Subject::Address(address), kind: WriteKind::Claim, lease });
            }
        }
    }

    /// Gives back the addresses that were claimed in this term and are no longer assigned to this node, once they
    /// are off the network.
    fn give_back(&self, term: &Term, clock: Timestamp, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
        for (address, claimed) in &self.claims {
            if let Claimed::Stored { lease: before, holder: Some(holder) } = claimed
                && *holder == term.identity
                && !self.is_wanted(*address, deadline.now)
                && self.is_off(*address)
                && self.may_write(*address, deadline)
            {
                let lease = Box::new(holder_lease(*address, None, Some(before), clock));
                writes.push(LeaseWrite { subject: Subject::Address(*address), kind: WriteKind::GiveBack, lease });
            }
        }
    }

    /// Whether the address is certainly not on the network: the network has applied a desired state without it.
    fn is_off(&self, address: IpAddr) -> bool {
        let held_in = self.histories.get(&address).map_or(0, |history| history.held_in);
        held_in == 0 || self.observed.number > held_in && !self.observed.addresses.contains(&address)
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

    /// Whether another living node may hold the address.
    fn has_others(&self, address: IpAddr, now: Instant) -> bool {
        let Some(assigned) = self.assignments.get(&address) else { return false };
        self.peers.live(now).any(|node| node != self.node && assigned.nodes.contains(node))
    }

    /// Until when the address is left to other nodes; `None` if it is not, or if no other node may hold it.
    fn left_to_others_until(&self, address: IpAddr, now: Instant) -> Option<Instant> {
        let until = self.histories.get(&address).and_then(|history| history.left_to_others_until);
        until.filter(|until| now < *until).filter(|_| self.has_others(address, now))
    }

    /// Until when this node does not claim the address: either it could not hold this address, or it holds no address
    /// and could not hold another one. `None` if it may claim the address.
    fn no_claim_until(&self, address: IpAddr, now: Instant) -> Option<Instant> {
        let of_node = || {
            let some = self.mine.is_empty() && self.has_others(address, now);
            let left = self.histories.values().filter_map(|history| history.left_to_others_until);
            left.filter(|until| now < *until).max().filter(|_| some)
        };
        self.left_to_others_until(address, now).or_else(of_node)
    }

    fn may_write(&self, address: IpAddr, deadline: &mut NextDeadline) -> bool {
        let retry_at = self.histories.get(&address).and_then(|history| history.retry_at);
        !self.busy.contains(&Subject::Address(address)) && retry_at.is_none_or(|retry_at| deadline.is_due(retry_at))
    }

    /// Whether this agent may write the heartbeat of another node now. The first agent in the order of turns may write
    /// it from `since` on, and each further agent one `pause` later.
    fn may_write_heartbeat(&self, node: &str, since: Instant, pause: Duration, deadline: &mut NextDeadline) -> bool {
        if node == self.node || self.busy.contains(&Subject::Node(node.to_owned())) {
            return false;
        }
        let due = since + pause * self.turn(node, deadline.now);
        deadline.is_due(self.heartbeat_retry_at.get(node).map_or(due, |retry_at| due.max(*retry_at)))
    }

    /// The number of agents that come before this one for a task that any agent may do.
    fn turn(&self, name: &str, now: Instant) -> u32 {
        let live = self.live(now);
        let turn = order_for(name, live).iter().position(|node| *node == self.node);
        u32::try_from(turn.unwrap_or_default()).unwrap_or(u32::MAX).min(TURNS)
    }

    /// The nodes that claim addresses.
    fn claiming_nodes(&self) -> BTreeSet<&str> {
        self.claims.values().filter_map(Claimed::node).collect()
    }

    /// The nodes whose agents are alive, including this one.
    fn live(&self, now: Instant) -> BTreeSet<&str> {
        self.peers.live(now).chain([self.node.as_str()]).collect()
    }

    fn tidy(&mut self, now: Instant) {
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
    fn remove_leases(&mut self, deadline: &mut NextDeadline, writes: &mut Vec<LeaseWrite>) {
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
        let nodes = self.claiming_nodes();
        for StaleHeartbeat { node, lease, since } in self.peers.forgotten(deadline.now) {
            if !nodes.contains(node.as_str()) && self.may_write_heartbeat(&node, since, REMOVING_TURN, deadline) {
                writes.push(LeaseWrite { subject: Subject::Node(node), kind: WriteKind::Remove, lease });
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
