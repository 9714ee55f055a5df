//! The state of the agent's own heartbeat: the next action, and the end of the term. Uses no clock and sends no
//! requests.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use super::timing::HEARTBEAT;
use crate::cluster::claim_lease::LABEL;
use crate::controller::identity::{Identity, Role};
use crate::controller::lease::{Seen, Step, look, step};

/// Value of the label of heartbeats.
pub const AGENT: &str = "agent";
/// Annotation of a heartbeat with the name of its Node.
pub const NODE_ANNOTATION: &str = "clusterip-policy/node";
/// The maximum length of a Lease name.
const LONGEST_NAME: usize = 253;
/// The number of former identities that a process remembers: a write with one of them may still be in flight.
const FORMER: usize = 8;

/// The name of the heartbeat of the agent on this node.
pub fn name(node: &str) -> String {
    let name = format!("clusterip-agent-{node}");
    if name.len() <= LONGEST_NAME {
        return name;
    }
    let mut name = "clusterip-agent-".to_owned();
    for byte in &Sha256::digest(node.as_bytes())[..16] {
        // `write!` to a `String` never fails.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// One unbroken period in which this agent is certainly alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The identity of the agent in this term.
    pub identity: Identity,
    /// When the term ends, unless the heartbeat is renewed before.
    pub until: Instant,
}

/// The next action of the renewal loop.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NextAction {
    /// Read it: its state is unknown.
    Read,
    /// Write it: replace it if the Lease has a resource version, otherwise create it.
    Write(Box<Lease>),
    /// Wait: another agent of this node holds the heartbeat, and may be alive.
    Wait,
}

#[derive(Clone, Debug, PartialEq)]
enum Known {
    Nothing,
    Absent,
    There(Box<Lease>),
}

/// The state of this agent's heartbeat.
pub(super) struct HeartbeatState {
    node: String,
    identity: Identity,
    former: Vec<Identity>,
    known: Known,
    /// The heartbeat of another agent of this node as it was last observed, and when it was first observed so.
    other: Option<Seen>,
    until: Option<Instant>,
}

impl HeartbeatState {
    pub(super) fn new(node: &str) -> Self {
        Self::with(node, Identity::on(node, Role::Agent))
    }

    pub(super) fn with(node: &str, identity: Identity) -> Self {
        Self { node: node.to_owned(), identity, former: Vec::new(), known: Known::Nothing, other: None, until: None }
    }

    /// The current term, if there is one.
    pub(super) fn term(&self, now: Instant) -> Option<Term> {
        let until = self.until.filter(|until| now < *until)?;
        Some(Term { identity: self.identity.clone(), until })
    }

    /// The end of the term, unless the API server confirms a renewal before.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// The next action. A term whose time is over ends here for good, even if a renewal in flight succeeds later.
    pub(super) fn next(&mut self, now: Instant, clock: Timestamp) -> NextAction {
        self.lapse_if_over(now);
        match &self.known {
            Known::Nothing => NextAction::Read,
            Known::Absent => match step(None, &self.identity, HEARTBEAT, now, clock) {
                Step::Write(spec) => NextAction::Write(Box::new(self.lease(None, spec))),
                Step::Wait => NextAction::Wait,
            },
            Known::There(lease) => match step(self.other.as_ref(), &self.identity, HEARTBEAT, now, clock) {
                Step::Write(spec) => NextAction::Write(Box::new(self.lease(Some(lease), spec))),
                Step::Wait => NextAction::Wait,
            },
        }
    }

    /// Records the answer to a write that was sent at `sent`.
    pub(super) fn wrote(&mut self, lease: Lease, sent: Instant, now: Instant) {
        self.lapse_if_over(now);
        let ours = holder(&lease) == Some(&self.identity.to_string());
        self.found(Some(lease), now);
        let until = sent + HEARTBEAT.deadline;
        if ours && now < until {
            self.until = Some(until);
        }
    }

    /// Forgets the observed Lease, because the outcome of a write is unknown or the observation is outdated.
    pub(super) fn forget(&mut self) {
        self.known = Known::Nothing;
    }

    /// Records the Lease that was read.
    pub(super) fn read(&mut self, lease: Option<Lease>, now: Instant) {
        self.lapse_if_over(now);
        // Another agent has taken or ended the heartbeat, because this agent did not renew it in time.
        let ours = |holder: Option<&str>| holder.is_some_and(|holder| self.may_renew(holder));
        if self.until.is_some() && lease.as_ref().is_some_and(|lease| !ours(holder(lease))) {
            self.lapse();
        }
        self.found(lease, now);
    }

    /// Ends the term: the next one has another identity.
    pub(super) fn lapse(&mut self) {
        self.until = None;
        self.other = None;
        let identity = std::mem::replace(&mut self.identity, Identity::on(&self.node, Role::Agent));
        self.former.insert(0, identity);
        self.former.truncate(FORMER);
    }

    /// The Lease that gives the heartbeat back, if it may belong to this process.
    pub(super) fn give_back(&self, clock: Timestamp) -> Option<Lease> {
        let Known::There(lease) = &self.known else { return None };
        let ours = holder(lease).is_some_and(|holder| self.is_ours(holder));
        ours.then(|| given_back(lease, clock))
    }

    /// Whether the heartbeat has to be read before it can be given back.
    pub(super) fn is_unclear(&self) -> bool {
        self.known == Known::Nothing
    }

    /// Ends the term if its time is over.
    pub(super) fn lapse_if_over(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now >= until) {
            self.lapse();
        }
    }

    /// Whether a living agent of this node may renew a heartbeat with this holder: its own, or one that was put
    /// back.
    fn may_renew(&self, holder: &str) -> bool {
        holder == self.identity.as_str() || holder == unknown(&self.node).as_str()
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
        // A heartbeat of a former identity of this process is free, and so is one that was put back for the living
        // agent.
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder != self.identity.as_str() && (self.is_ours(holder) || self.until.is_some() && self.may_renew(holder))
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

/// The holder of a heartbeat; `None` if it was given back.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// The heartbeat without a holder.
pub(super) fn given_back(lease: &Lease, clock: Timestamp) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(String::new()),
        renew_time: Some(MicroTime(clock)),
        ..lease.spec.clone().unwrap_or_default()
    };
    Lease { spec: Some(spec), ..lease.clone() }
}

/// The holder of a heartbeat that was put back: any living agent of this node. It must not name one of the node's
/// known identities, because that would declare the terms of all others over.
pub(super) fn unknown(node: &str) -> Identity {
    Identity::with(node, Role::Agent, 0)
}

/// A new heartbeat in place of one that is missing.
pub(super) fn put_back(node: &str, clock: Timestamp) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(unknown(node).to_string()),
        lease_duration_seconds: i32::try_from(HEARTBEAT.lease.as_secs()).ok(),
        renew_time: Some(MicroTime(clock)),
        ..LeaseSpec::default()
    };
    Lease { metadata: metadata(node), spec: Some(spec) }
}

fn metadata(node: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name(node)),
        labels: Some(BTreeMap::from([(LABEL.to_owned(), AGENT.to_owned())])),
        annotations: Some(BTreeMap::from([(NODE_ANNOTATION.to_owned(), node.to_owned())])),
        ..ObjectMeta::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn identity(number: u64) -> Identity {
        Identity::with("node-1", Role::Agent, number)
    }

    /// The Lease as the API server returns it.
    fn stored(mut lease: Lease, version: u64) -> Lease {
        lease.metadata.uid = Some("uid".to_owned());
        lease.metadata.resource_version = Some(version.to_string());
        lease
    }

    fn kept_by(holder: &str, version: u64) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(20),
            ..LeaseSpec::default()
        };
        stored(Lease { metadata: metadata("node-1"), spec: Some(spec) }, version)
    }

    struct Test {
        heartbeat_state: HeartbeatState,
        begin: Instant,
        version: u64,
    }

    impl Test {
        /// A test with a term that began with a write sent at 0 s.
        fn running() -> Self {
            let mut test = Self {
                heartbeat_state: HeartbeatState::with("node-1", identity(1)),
                begin: Instant::now(),
                version: 0,
            };
            assert_eq!(test.next(0), NextAction::Read);
            test.heartbeat_state.read(None, test.at(0));
            test.write(0, 0);
            assert_eq!(test.term(0), Some((identity(1), 17)));
            test
        }

        fn at(&self, seconds: u32) -> Instant {
            self.begin + seconds * SECOND
        }

        fn next(&mut self, seconds: u32) -> NextAction {
            self.heartbeat_state.next(self.at(seconds), Timestamp::UNIX_EPOCH)
        }

        /// Sends the write that is due, with an answer at `answered`.
        fn write(&mut self, sent: u32, answered: u32) {
            let NextAction::Write(lease) = self.next(sent) else { panic!("nothing to write") };
            self.version += 1;
            self.heartbeat_state.forget();
            self.heartbeat_state.wrote(stored(*lease, self.version), self.at(sent), self.at(answered));
        }

        fn term(&self, seconds: u32) -> Option<(Identity, u64)> {
            let term = self.heartbeat_state.term(self.at(seconds))?;
            Some((term.identity, term.until.duration_since(self.begin).as_secs()))
        }
    }

    #[test]
    fn a_term_lasts_from_when_its_last_renewal_was_sent() {
        let mut test = Test::running();
        test.write(5, 8);
        assert_eq!(test.term(21), Some((identity(1), 22)));
        assert_eq!(test.term(22), None);
    }

    #[test]
    fn a_term_ends_by_time_by_others_or_when_given_back() {
        struct Case {
            name: &'static str,
            at: u32,
            event: fn(&mut Test),
        }
        let cases = [
            Case { name: "an answer that comes too late", at: 18, event: |test| test.write(16, 18) },
            Case {
                name: "it was ended",
                at: 5,
                event: |test| test.heartbeat_state.read(Some(kept_by("", 9)), test.at(5)),
            },
            Case {
                name: "another took it",
                at: 5,
                event: |test| test.heartbeat_state.read(Some(kept_by("node-1_agent_2", 9)), test.at(5)),
            },
            Case { name: "time", at: 17, event: |test| test.heartbeat_state.lapse_if_over(test.at(17)) },
            Case { name: "it is given back", at: 5, event: |test| test.heartbeat_state.lapse() },
        ];
        for Case { name, at, event } in cases {
            let mut test = Test::running();
            event(&mut test);
            assert_eq!(test.term(at), None, "{name}");
            // A heartbeat that this process recognizes as its own can be written again at once, under a new
            // identity.
            let waits = test.next(at) == NextAction::Wait;
            assert_eq!(waits, name == "another took it", "{name}");
            if !waits {
                if test.next(at) == NextAction::Read {
                    test.heartbeat_state.read(Some(kept_by(identity(1).as_str(), 9)), test.at(at));
                }
                test.write(at, at);
                let (next, until) = test.term(at).unwrap();
                assert_ne!(next, identity(1), "{name}");
                assert_eq!(until, u64::from(at) + 17, "{name}");
            }
        }
    }

    #[test]
    fn losing_the_lease_or_an_answer_does_not_end_a_term() {
        type Case = fn(&mut Test);
        let rows: [(&str, Case); 4] = [
            ("it was put back by others", |test| {
                test.heartbeat_state.read(Some(stored(put_back("node-1", Timestamp::UNIX_EPOCH), 9)), test.at(5))
            }),
            ("a write without an answer", |test| test.heartbeat_state.forget()),
            ("it was deleted", |test| test.heartbeat_state.read(None, test.at(5))),
            ("it was put back", |test| test.heartbeat_state.read(Some(kept_by(identity(1).as_str(), 9)), test.at(5))),
        ];
        for (name, case) in rows {
            let mut test = Test::running();
            case(&mut test);
            assert_eq!(test.term(16), Some((identity(1), 17)), "{name}");
            if test.next(6) == NextAction::Read {
                test.heartbeat_state.read(Some(kept_by(identity(1).as_str(), 9)), test.at(6));
            }
            test.write(6, 6);
            assert_eq!(test.term(16), Some((identity(1), 23)), "{name}");
        }
    }

    #[test]
    fn another_process_of_this_node_is_waited_for_until_it_is_silent() {
        let mut test =
            Test { heartbeat_state: HeartbeatState::with("node-1", identity(1)), begin: Instant::now(), version: 9 };
        for (seconds, expected) in [(0, true), (19, true), (20, false)] {
            test.heartbeat_state.forget();
            assert_eq!(test.next(seconds), NextAction::Read);
            test.heartbeat_state.read(Some(kept_by("node-1_agent_2", 9)), test.at(seconds));
            assert_eq!(test.next(seconds) == NextAction::Wait, expected, "{seconds} s");
        }
        test.write(20, 20);
        assert_eq!(test.term(20), Some((identity(1), 37)));
    }

    #[test]
    fn only_an_own_heartbeat_is_given_back() {
        let mut test = Test::running();
        let given = test.heartbeat_state.give_back(Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(holder(&given), None);
        assert_eq!(given.metadata.resource_version.as_deref(), Some("1"));
        test.heartbeat_state.read(Some(kept_by("node-1_agent_2", 9)), test.at(1));
        assert_eq!(test.heartbeat_state.give_back(Timestamp::UNIX_EPOCH), None);
        test.heartbeat_state.read(None, test.at(1));
        assert_eq!(test.heartbeat_state.give_back(Timestamp::UNIX_EPOCH), None);
    }
}
