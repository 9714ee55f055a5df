//! The state of the agent's own heartbeat: the next action, and the end of the term, computed from events alone.

use clusterip_core::annotations::{HEARTBEAT_LABEL, NODE_ANNOTATION};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::leases::{self, Identity, Observed, ObservedLease, Role, Step, Version, step};
use crate::timing::{Failover, KERNEL_DELAY};

pub const AGENT: &str = "agent";
const MAX_NAME_LENGTH: usize = 253;
/// The number of former identities that a process remembers: a write with one of them may still be in flight.
const FORMER: usize = 8;

pub fn name(node: &str) -> String {
    let name = format!("clusterip-agent-{node}");
    if name.len() <= MAX_NAME_LENGTH {
        return name;
    }
    let digest = Sha256::digest(node.as_bytes());
    let digits: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("clusterip-agent-{digits}")
}

/// One unbroken period in which this agent is certainly alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub identity: Identity,
    /// When the term ends, unless the heartbeat is renewed before.
    pub until: Instant,
}

#[derive(Clone, Debug, PartialEq)]
pub enum NextAction {
    Read,
    /// Write it: replace it if the Lease has a resource version, otherwise create it.
    Write(Box<Lease>),
    /// Wait: another agent of this node holds the heartbeat, and may be alive, or the last term has just ended.
    Wait,
}

#[derive(Clone, Debug, PartialEq)]
enum Known {
    Nothing,
    Absent,
    There(Box<Lease>),
}

pub struct HeartbeatState {
    node: String,
    failover: Failover,
    new_identity: Box<dyn FnMut() -> Identity + Send>,
    identity: Identity,
    former: Vec<Identity>,
    known: Known,
    /// The heartbeat of another agent of this node as it was last observed, and when it was first observed so.
    other: Option<ObservedLease>,
    until: Option<Instant>,
    /// When the next term may begin; `None` stands for any time. Others take over at once what was claimed in the term
    /// before it, which the kernel must have removed by then.
    rests_until: Option<Instant>,
}

impl HeartbeatState {
    /// `new_identity` returns an identity of an agent on this node that no process has had before, for each term.
    pub fn new(node: &str, failover: Failover, mut new_identity: impl FnMut() -> Identity + Send + 'static) -> Self {
        Self {
            node: node.to_owned(),
            failover,
            identity: new_identity(),
            new_identity: Box::new(new_identity),
            former: Vec::new(),
            known: Known::Nothing,
            other: None,
            until: None,
            rests_until: None,
        }
    }

    pub fn term(&self, now: Instant) -> Option<Term> {
        let until = self.until.filter(|until| now < *until)?;
        Some(Term { identity: self.identity.clone(), until })
    }

    /// The end of the term, unless the API server confirms a renewal before.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// The next action. A term whose time is over ends here for good, even if a renewal in flight succeeds later.
    pub fn next(&mut self, now: Instant, clock: Timestamp) -> NextAction {
        self.lapse_if_over(now);
        if self.rests_until.is_some_and(|until| now < until) {
            return NextAction::Wait;
        }
        let before = match &self.known {
            Known::Nothing => return NextAction::Read,
            Known::Absent => None,
            Known::There(lease) => Some(&**lease),
        };
        match step(self.other.as_ref(), &self.identity, self.failover.heartbeat(), now, clock) {
            Step::Write(spec) => {
                let mut own = lease(&self.node, before, spec);
                own.metadata.labels.get_or_insert_default().insert(HEARTBEAT_LABEL.to_owned(), "own".to_owned());
                NextAction::Write(Box::new(own))
            }
            Step::Wait => NextAction::Wait,
        }
    }

    pub fn wrote(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.lapse_if_over(now);
        let ours = holder(&lease) == Some(&self.identity.to_string());
        self.found(Some(lease), now);
        let until = sent + self.failover.heartbeat().deadline;
        if ours && now < until {
            self.until = Some(until);
        }
    }

    /// Forgets the observed Lease, because the outcome of a write is unknown or the observation is outdated.
    pub fn forget(&mut self) {
        self.known = Known::Nothing;
    }

    pub fn read(&mut self, lease: Option<Lease>, now: Instant) {
        self.lapse_if_over(now);
        // Another agent has taken or ended the heartbeat, because this agent did not renew it in time.
        let ours = |holder: Option<&str>| holder.is_some_and(|holder| self.may_renew(holder));
        if self.until.is_some() && lease.as_ref().is_some_and(|lease| !ours(holder(lease))) {
            self.lapse();
        }
        self.found(lease, now);
    }

    /// Ends the term: the next one has another identity.
    pub fn lapse(&mut self) {
        self.until = None;
        self.other = None;
        let identity = std::mem::replace(&mut self.identity, (self.new_identity)());
        self.former.insert(0, identity);
        self.former.truncate(FORMER);
    }

    /// The Lease that gives the heartbeat back, if it may belong to this process.
    pub fn give_back(&self, clock: Timestamp) -> Option<Lease> {
        let Known::There(lease) = &self.known else { return None };
        let ours = holder(lease).is_some_and(|holder| self.is_ours(holder));
        ours.then(|| given_back(&self.node, lease, clock))
    }

    /// Whether the heartbeat has to be read before it can be given back.
    pub fn is_unclear(&self) -> bool {
        self.known == Known::Nothing
    }

    pub fn lapse_if_over(&mut self, now: Instant) {
        if let Some(until) = self.until.filter(|until| now >= *until) {
            self.rests_until = Some(until + KERNEL_DELAY);
            self.lapse();
        }
    }

    /// Whether a living agent of this node may renew a heartbeat with this holder: its own, or one that was put back.
    fn may_renew(&self, holder: &str) -> bool {
        holder == self.identity.as_str() || holder == any_agent_of(&self.node).as_str()
    }

    fn is_ours(&self, holder: &str) -> bool {
        holder == self.identity.as_str() || self.former.iter().any(|former| former.as_str() == holder)
    }

    fn found(&mut self, lease: Option<Lease>, now: Instant) {
        let Some(lease) = lease else {
            self.known = Known::Absent;
            self.other = None;
            return;
        };
        // An earlier agent of this node may rely on it for longer than this one does, but not for years: another agent
        // may have put the heartbeat back.
        let lease_duration_seconds = Some(Failover::of(&lease).heartbeat().seconds());
        let mut spec = LeaseSpec { lease_duration_seconds, ..lease.spec.clone().unwrap_or_default() };
        // While a heartbeat is put back again and again, no living agent has it: that agent would write its own identity.
        if spec.holder_identity.as_deref() == Some(any_agent_of(&self.node).as_str()) {
            let holder_identity = spec.holder_identity;
            spec = LeaseSpec { holder_identity, lease_duration_seconds, ..LeaseSpec::default() };
        }
        // A heartbeat of a former identity, or one that was put back for the living agent, is free.
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder != self.identity.as_str() && (self.is_ours(holder) || self.until.is_some() && self.may_renew(holder))
        {
            spec.holder_identity = None;
        }
        self.other = Some(Observed::next(self.other.take(), spec, now));
        self.known = Known::There(Box::new(lease));
    }
}

pub fn holder(lease: &Lease) -> Option<&str> {
    leases::holder(lease.spec.as_ref()?)
}

/// The heartbeat of this node without a holder, in place of the Lease `before`.
pub(crate) fn given_back(node: &str, before: &Lease, clock: Timestamp) -> Lease {
    let lease_transitions = before.spec.as_ref().and_then(|spec| spec.lease_transitions);
    lease(node, Some(before), LeaseSpec { lease_transitions, ..written_spec(String::new(), clock) })
}

/// The holder of a heartbeat that was put back: a known identity would declare the terms of all others over.
pub(crate) fn any_agent_of(node: &str) -> Identity {
    Identity::with(node, Role::Agent, 0)
}

pub fn put_back(node: &str, clock: Timestamp) -> Lease {
    lease(node, None, written_spec(any_agent_of(node).to_string(), clock))
}

fn written_spec(holder: String, clock: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(holder),
        lease_duration_seconds: Some(Failover::default().heartbeat().seconds()),
        renew_time: Some(MicroTime(clock)),
        ..LeaseSpec::default()
    }
}

/// The heartbeat of this node, in place of the Lease `before`.
fn lease(node: &str, before: Option<&Lease>, spec: LeaseSpec) -> Lease {
    let metadata = leases::metadata(name(node), AGENT, [(NODE_ANNOTATION, node.to_owned())]);
    let mut lease = Lease { metadata, spec: Some(spec) };
    if let Some(before) = before {
        Version::of(before).replace_with(&mut lease);
    }
    lease
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests;
