//! The heartbeats of the other agents, as this one has observed them.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::heartbeat_state::{NODE_ANNOTATION, name};
use super::heartbeat_state::{holder, unknown};
use super::timing::{HEARTBEAT, HEARTBEAT_RETENTION, MISSING_GRACE};
use super::version::Version;
use crate::controller::identity::Identity;

/// What is known of a term in which an agent claimed addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TermState {
    /// The term goes on, as far as was observed.
    Alive,
    /// The heartbeat was not renewed for its whole duration: any agent may end it.
    Silent,
    /// The term is over, for good.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    /// The agent with this identity renews the heartbeat.
    Agent(Identity),
    /// The heartbeat was given back, or ended.
    Released,
    /// There is no Lease. It may have been deleted by hand and created again: as long as no agent has seen one
    /// version of it for its whole duration, its owner may be alive.
    Missing,
    /// The heartbeat was missing and was put back: it belongs to the living agent of the node, if there is one.
    Unknown,
}

#[derive(Clone, Debug)]
struct Peer {
    owner: Owner,
    /// The Lease, if there is one.
    lease: Option<Box<Lease>>,
    duration: Duration,
    /// When the heartbeat was first seen in this state.
    since: Instant,
}

impl Peer {
    fn silent_from(&self) -> Instant {
        self.since + self.duration
    }
}

/// A heartbeat that is to be written or removed, in the version that was seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StaleHeartbeat {
    pub(super) node: String,
    pub(super) lease: Box<Lease>,
    /// Since when the heartbeat may be written or removed.
    pub(super) since: Instant,
}

/// A heartbeat that is missing.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MissingHeartbeat {
    pub(super) node: String,
    /// When the owner should have created the heartbeat again.
    pub(super) since: Instant,
}

/// The heartbeats of all nodes, by Node name.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    by_node: BTreeMap<String, Peer>,
}

impl Peers {
    /// Adds or updates the heartbeat of a Lease.
    pub(super) fn see(&mut self, lease: &Lease, now: Instant) {
        let Some(node) = node_of(lease) else { return };
        let version = Version::of(lease);
        if let Some(known) = self.by_node.get(node).and_then(|peer| peer.lease.as_ref()) {
            let known = Version::of(known);
            if known == version || version.is_older_than(&known) {
                return;
            }
        }
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let peer = Peer {
            owner: match holder(lease) {
                None => Owner::Released,
                Some(holder) if holder == unknown(node).as_str() => Owner::Unknown,
                Some(holder) => Owner::Agent(Identity::of(holder)),
            },
            lease: Some(Box::new(lease.clone())),
            duration: seconds.map_or(HEARTBEAT.lease, Duration::from_secs),
            since: now,
        };
        self.by_node.insert(node.to_owned(), peer);
    }

    /// Records that a heartbeat was deleted. An agent that stops gives its heartbeat back instead, so the owner may
    /// be alive.
    pub(super) fn gone(&mut self, lease: &Lease, now: Instant) {
        let Some(peer) = node_of(lease).and_then(|node| self.by_node.get_mut(node)) else { return };
        let same = |known: &Lease| Version::of(known).uid == Version::of(lease).uid;
        if peer.lease.as_ref().is_some_and(|known| same(known)) {
            peer.go(now);
        }
    }

    /// Replaces what is known by a complete list of Leases.
    pub(super) fn only(&mut self, leases: &[Lease], now: Instant) {
        for lease in leases {
            self.see(lease, now);
        }
        let listed: Vec<&str> = leases.iter().filter_map(node_of).collect();
        for (node, peer) in &mut self.by_node {
            if peer.lease.is_some() && !listed.contains(&node.as_str()) {
                peer.go(now);
            }
        }
    }

    /// Waits from now on for the heartbeat of a node that claims an address without having one.
    pub(super) fn expect(&mut self, node: &str, now: Instant) {
        if !self.by_node.contains_key(node) {
            let peer = Peer { owner: Owner::Missing, lease: None, duration: MISSING_GRACE, since: now };
            self.by_node.insert(node.to_owned(), peer);
        }
    }

    /// Forgets the nodes without a heartbeat, except for the `wanted` ones.
    pub(super) fn forget_absent_but(&mut self, wanted: impl Fn(&str) -> bool) {
        self.by_node.retain(|node, peer| peer.lease.is_some() || wanted(node));
    }

    /// What is known of the term with this identity on this node.
    pub(super) fn term_state(&self, node: &str, identity: &Identity, now: Instant) -> TermState {
        let Some(peer) = self.by_node.get(node) else { return TermState::Silent };
        match &peer.owner {
            Owner::Agent(owner) if owner != identity => TermState::Over,
            Owner::Released => TermState::Over,
            Owner::Agent(_) | Owner::Missing | Owner::Unknown if now < peer.silent_from() => TermState::Alive,
            Owner::Agent(_) | Owner::Missing | Owner::Unknown => TermState::Silent,
        }
    }

    /// The nodes whose agents are alive.
    pub(super) fn live(&self, now: Instant) -> impl Iterator<Item = &str> {
        let lives = move |peer: &Peer| matches!(peer.owner, Owner::Agent(_)) && now < peer.silent_from();
        self.by_node.iter().filter(move |(_, peer)| lives(peer)).map(|(node, _)| node.as_str())
    }

    /// The heartbeats that are silent and not yet ended.
    pub(super) fn silent(&self, now: Instant) -> impl Iterator<Item = StaleHeartbeat> {
        let silent =
            move |peer: &Peer| matches!(peer.owner, Owner::Agent(_) | Owner::Unknown) && now >= peer.silent_from();
        self.stale(silent, Peer::silent_from)
    }

    /// The heartbeats that are missing although their owners had time to create them again. Creating one again ends
    /// nothing: a living owner goes on renewing it, and a dead owner is then seen to be silent.
    pub(super) fn missing(&self, now: Instant) -> impl Iterator<Item = MissingHeartbeat> {
        let missing = move |peer: &Peer| peer.owner == Owner::Missing && now >= peer.silent_from();
        let these = self.by_node.iter().filter(move |(_, peer)| missing(peer));
        these.map(|(node, peer)| MissingHeartbeat { node: node.clone(), since: peer.silent_from() })
    }

    /// The heartbeats that have had no holder for so long that they are not likely to get one.
    pub(super) fn forgotten(&self, now: Instant) -> impl Iterator<Item = StaleHeartbeat> {
        let old = move |peer: &Peer| now >= peer.since + HEARTBEAT_RETENTION;
        let forgotten = move |peer: &Peer| peer.owner == Owner::Released && old(peer);
        self.stale(forgotten, |peer| peer.since + HEARTBEAT_RETENTION)
    }

    fn stale(
        &self,
        which: impl Fn(&Peer) -> bool,
        since: impl Fn(&Peer) -> Instant,
    ) -> impl Iterator<Item = StaleHeartbeat> {
        let these = self.by_node.iter().filter(move |(_, peer)| which(peer));
        these.filter_map(move |(node, peer)| {
            Some(StaleHeartbeat { node: node.clone(), lease: peer.lease.clone()?, since: since(peer) })
        })
    }

    /// When the next heartbeat becomes silent if it is not renewed, or becomes old enough to be removed.
    pub(super) fn next_change(&self, now: Instant) -> Option<Instant> {
        let change = |peer: &Peer| match peer.owner {
            Owner::Released => peer.since + HEARTBEAT_RETENTION,
            Owner::Agent(_) | Owner::Missing | Owner::Unknown => peer.silent_from(),
        };
        self.by_node.values().map(change).filter(|change| *change > now).min()
    }
}

impl Peer {
    fn go(&mut self, now: Instant) {
        self.lease = None;
        // A term that was given back is over, whether its Lease exists or not.
        if matches!(self.owner, Owner::Agent(_) | Owner::Unknown) {
            self.owner = Owner::Missing;
            self.since = now;
            self.duration = MISSING_GRACE;
        }
    }
}

/// The Node of a heartbeat; `None` if this program can't have written the Lease.
pub(super) fn node_of(lease: &Lease) -> Option<&str> {
    let node = lease.metadata.annotations.as_ref()?.get(NODE_ANNOTATION)?;
    (lease.metadata.name.as_deref()? == name(node)).then_some(node)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::jiff::Timestamp;

    use super::super::heartbeat_state::put_back;
    use super::*;
    use crate::controller::identity::Role;

    fn identity(number: u64) -> Identity {
        Identity::with("a", Role::Agent, number)
    }

    const NOBODY: u64 = 0;
    const UNKNOWN: u64 = 99;

    /// The heartbeat of node `a`.
    fn lease(owner: u64, version: u64) -> Lease {
        let mut lease = put_back("a", Timestamp::UNIX_EPOCH);
        lease.metadata.uid = Some("uid".to_owned());
        lease.metadata.resource_version = Some(version.to_string());
        let holder = match owner {
            NOBODY => String::new(),
            UNKNOWN => unknown("a").to_string(),
            owner => identity(owner).to_string(),
        };
        lease.spec = lease.spec.map(|spec| LeaseSpec { holder_identity: Some(holder), ..spec });
        lease
    }

    #[test]
    fn a_term_is_alive_silent_or_over_by_its_heartbeat() {
        use TermState::{Alive, Over, Silent};
        type Step = (u64, fn(&mut Peers, Instant));
        let first: Step = (0, |peers, now| peers.see(&lease(1, 1), now));
        let gone: Step = (5, |peers, now| peers.gone(&lease(1, 1), now));
        // The `Seen` at 19 s and at 20 s: standing of the first term; whether the node is alive; whether the
        // heartbeat is to be ended; whether it is to be put back.
        type Seen = (TermState, bool, bool, bool);
        let rows: [(&str, Vec<Step>, Seen, Seen); 11] = [
            ("nothing", vec![], (Silent, false, false, false), (Silent, false, false, false)),
            ("first seen", vec![first], (Alive, true, false, false), (Silent, false, true, false)),
            (
                "renewed",
                vec![first, (5, |peers, now| peers.see(&lease(1, 2), now))],
                (Alive, true, false, false),
                (Alive, true, false, false),
            ),
            (
                "seen again as it was",
                vec![first, (5, |peers, now| peers.only(&[lease(1, 1)], now))],
                (Alive, true, false, false),
                (Silent, false, true, false),
            ),
            (
                "given back",
                vec![first, (5, |peers, now| peers.see(&lease(NOBODY, 2), now))],
                (Over, false, false, false),
                (Over, false, false, false),
            ),
            (
                "an old version after a new one",
                vec![
                    (0, |peers, now| peers.see(&lease(NOBODY, 2), now)),
                    (5, |peers, now| peers.see(&lease(1, 1), now)),
                ],
                (Over, false, false, false),
                (Over, false, false, false),
            ),
            (
                "another term",
                vec![first, (5, |peers, now| peers.see(&lease(2, 2), now))],
                (Over, true, false, false),
                (Over, true, false, false),
            ),
            ("deleted", vec![first, gone], (Silent, false, false, true), (Silent, false, false, true)),
            (
                "put back",
                vec![first, gone, (15, |peers, now| peers.see(&lease(UNKNOWN, 3), now))],
                (Alive, false, false, false),
                (Alive, false, false, false),
            ),
            (
                "put back, and silent",
                vec![first, (0, |peers, now| peers.see(&lease(UNKNOWN, 3), now))],
                (Alive, false, false, false),
                (Silent, false, true, false),
            ),
            (
                "given back, and removed",
                vec![
                    first,
                    (5, |peers, now| peers.see(&lease(NOBODY, 2), now)),
                    (6, |peers, now| peers.only(&[], now)),
                ],
                (Over, false, false, false),
                (Over, false, false, false),
            ),
        ];
        for (name, steps, early, late) in rows {
            let begin = Instant::now();
            let at = |seconds| begin + Duration::from_secs(seconds);
            let mut peers = Peers::default();
            for (seconds, step) in steps {
                step(&mut peers, at(seconds));
            }
            for (seconds, expected) in [(19, early), (20, late)] {
                let now = at(seconds);
                let found = (
                    peers.term_state("a", &identity(1), now),
                    peers.live(now).eq(["a"]),
                    peers.silent(now).count() == 1,
                    peers.missing(now).count() == 1,
                );
                assert_eq!(found, expected, "{name}, {seconds} s");
            }
        }
    }

    #[test]
    fn a_node_without_heartbeat_is_missing_after_a_wait_until_it_is_forgotten() {
        let begin = Instant::now();
        let mut peers = Peers::default();
        peers.expect("a", begin);
        let missing = MissingHeartbeat { node: "a".to_owned(), since: begin + MISSING_GRACE };
        assert_eq!(peers.missing(begin).collect::<Vec<_>>(), vec![]);
        assert_eq!(peers.next_change(begin), Some(begin + MISSING_GRACE));
        peers.expect("a", begin + MISSING_GRACE);
        assert_eq!(peers.missing(begin + MISSING_GRACE).collect::<Vec<_>>(), vec![missing]);
        peers.forget_absent_but(|_| false);
        assert_eq!(peers.missing(begin + MISSING_GRACE).collect::<Vec<_>>(), vec![]);
    }

    #[test]
    fn a_heartbeat_without_holder_is_removed_when_it_is_old() {
        let begin = Instant::now();
        let mut peers = Peers::default();
        peers.see(&lease(NOBODY, 2), begin);
        assert_eq!(peers.next_change(begin), Some(begin + HEARTBEAT_RETENTION));
        assert_eq!(peers.forgotten(begin + HEARTBEAT_RETENTION - Duration::from_secs(1)).count(), 0);
        let lease = Box::new(lease(NOBODY, 2));
        let expected = vec![StaleHeartbeat { node: "a".to_owned(), lease, since: begin + HEARTBEAT_RETENTION }];
        assert_eq!(peers.forgotten(begin + HEARTBEAT_RETENTION).collect::<Vec<_>>(), expected);
    }
}
