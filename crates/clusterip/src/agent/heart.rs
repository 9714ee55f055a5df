//! The own heartbeat: what is written next, and until when the term lasts. No clock, no requests.

use std::collections::BTreeMap;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use tokio::time::Instant;

use super::heartbeat::{HEARTBEAT as LABEL_VALUE, NODE_ANNOTATION, name};
use super::timing::HEARTBEAT;
use crate::cluster::claim_lease::LABEL;
use crate::controller::identity::{Identity, Role};
use crate::controller::lease::{Seen, Step, look, step};

/// How many of its former identities a process knows. It needs those of which a write may be under way.
const FORMER: usize = 8;

/// One unbroken time in which this agent is surely alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Who it is in this term.
    pub identity: Identity,
    /// When it ends, unless the heartbeat is renewed before.
    pub until: Instant,
}

/// What is to be done about the heartbeat.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Beat {
    /// It is to be read: nobody knows what it is like.
    Read,
    /// It is to be written: replaced where it has a version, else created.
    Write(Box<Lease>),
    /// Another agent of this node keeps it, and may be alive.
    Wait,
}

#[derive(Clone, Debug, PartialEq)]
enum Known {
    Nothing,
    Absent,
    There(Box<Lease>),
}

/// The heartbeat of this agent.
pub(super) struct Heart {
    node: String,
    identity: Identity,
    former: Vec<Identity>,
    known: Known,
    /// That of another agent of this node.
    other: Option<Seen>,
    until: Option<Instant>,
}

impl Heart {
    pub(super) fn new(node: &str) -> Self {
        Self::with(node, Identity::on(node, Role::Agent))
    }

    pub(super) fn with(node: &str, identity: Identity) -> Self {
        Self { node: node.to_owned(), identity, former: Vec::new(), known: Known::Nothing, other: None, until: None }
    }

    /// The term, if there is one now.
    pub(super) fn term(&self, now: Instant) -> Option<Term> {
        let until = self.until.filter(|until| now < *until)?;
        Some(Term { identity: self.identity.clone(), until })
    }

    /// Until when a renewal must be known to have been carried out.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// What is next. Where the term is over, it is for good: also if a renewal that is under way is carried out.
    pub(super) fn next(&mut self, now: Instant, clock: Timestamp) -> Beat {
        self.lapse_if_over(now);
        match &self.known {
            Known::Nothing => Beat::Read,
            Known::Absent => match step(None, &self.identity, HEARTBEAT, now, clock) {
                Step::Write(spec) => Beat::Write(Box::new(self.lease(None, spec))),
                Step::Wait => Beat::Wait,
            },
            Known::There(lease) => match step(self.other.as_ref(), &self.identity, HEARTBEAT, now, clock) {
                Step::Write(spec) => Beat::Write(Box::new(self.lease(Some(lease), spec))),
                Step::Wait => Beat::Wait,
            },
        }
    }

    /// A write was carried out that was sent then.
    pub(super) fn wrote(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.lapse_if_over(now);
        let ours = holder(&lease) == Some(&self.identity.to_string());
        self.found(Some(lease), now);
        let until = sent + HEARTBEAT.deadline;
        if ours && now < until {
            self.until = Some(until);
        }
    }

    /// What became of a write is not known, or what is known is old.
    pub(super) fn forget(&mut self) {
        self.known = Known::Nothing;
    }

    /// It was read.
    pub(super) fn read(&mut self, lease: Option<Lease>, now: Instant) {
        self.lapse_if_over(now);
        // Whoever took it, or ended it, has found this agent silent for as long as it lasts.
        if self.until.is_some() && lease.as_ref().is_some_and(|lease| holder(lease) != Some(self.identity.as_str())) {
            self.lapse();
        }
        self.found(lease, now);
    }

    /// Nothing is relied on any more.
    pub(super) fn lapse(&mut self) {
        self.until = None;
        let identity = std::mem::replace(&mut self.identity, Identity::on(&self.node, Role::Agent));
        self.former.insert(0, identity);
        self.former.truncate(FORMER);
    }

    /// The Lease that gives the heartbeat back, where it may be ours.
    pub(super) fn give_back(&self, clock: Timestamp) -> Option<Lease> {
        let Known::There(lease) = &self.known else { return None };
        let ours = holder(lease).is_some_and(|holder| self.is_ours(holder));
        ours.then(|| given_back(lease, clock))
    }

    /// Whether it has to be read before it can be given back.
    pub(super) fn is_unclear(&self) -> bool {
        self.known == Known::Nothing
    }

    /// Nothing is relied on any more, where the term is over.
    pub(super) fn lapse_if_over(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now >= until) {
            self.lapse();
        }
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
        let mut spec = lease.spec.clone().unwrap_or_default();
        // What this process held before is nobody's.
        if spec
            .holder_identity
            .as_deref()
            .is_some_and(|holder| holder != self.identity.as_str() && self.is_ours(holder))
        {
            spec.holder_identity = None;
        }
        self.other = Some(look(self.other.take(), spec, now));
        self.known = Known::There(Box::new(lease));
    }

    fn lease(&self, found: Option<&Lease>, spec: LeaseSpec) -> Lease {
        let mut metadata = metadata(&self.node);
        if let Some(Lease { metadata: known, .. }) = found {
            metadata.uid.clone_from(&known.uid);
            metadata.resource_version.clone_from(&known.resource_version);
        }
        Lease { metadata, spec: Some(spec) }
    }
}

/// Who keeps a heartbeat.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// A heartbeat that nobody keeps any more.
pub(super) fn given_back(lease: &Lease, clock: Timestamp) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(String::new()),
        renew_time: Some(MicroTime(clock)),
        ..lease.spec.clone().unwrap_or_default()
    };
    Lease { spec: Some(spec), ..lease.clone() }
}

/// The heartbeat of a node without one: from here on it must not be made as if nothing had been.
pub(super) fn ended(node: &str, clock: Timestamp) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        renew_time: Some(MicroTime(clock)),
        ..LeaseSpec::default()
    };
    Lease { metadata: metadata(node), spec: Some(spec) }
}

fn metadata(node: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name(node)),
        labels: Some(BTreeMap::from([(LABEL.to_owned(), LABEL_VALUE.to_owned())])),
        annotations: Some(BTreeMap::from([(NODE_ANNOTATION.to_owned(), node.to_owned())])),
        ..ObjectMeta::default()
    }
}
