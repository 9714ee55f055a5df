//! The heartbeats of all agents, as this agent has observed them.

use std::collections::{BTreeMap, BTreeSet};

use clusterip_core::annotations::NODE_ANNOTATION;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::heartbeat_state::{any_agent_of, holder, name};
use super::timing::{HEARTBEAT, HEARTBEAT_RETENTION, MISSING_GRACE};
use crate::leases::{Identity, Observed, Version};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TermState {
    Alive,
    /// The heartbeat was not renewed for its whole duration. Any agent may end it.
    Silent,
    /// The term is over and can't be resumed.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Owner {
    Agent(Identity),
    /// The heartbeat has no owner: it was given back, or ended by another agent.
    Released,
    /// The Lease does not exist. Its owner may be alive, and may create it again.
    Missing,
    /// The heartbeat was missing, and was put back for the living agent of the node, if there is one.
    Unknown,
}

#[derive(Clone, Debug)]
struct Peer {
    owner: Owner,
    lease: Option<Box<Lease>>,
}

/// When the heartbeat becomes silent, if it does not change before. The duration in the Lease does not count: with
/// the token of an agent, an attacker could keep its heartbeat alive for years after its node is gone.
fn silent_from(peer: &Observed<Peer>) -> Instant {
    peer.end(if peer.value.owner == Owner::Missing { MISSING_GRACE } else { HEARTBEAT.lease })
}

#[cfg(test)]
thread_local! {
    /// How many heartbeats this thread has visited to find the living ones.
    pub(crate) static VISITED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn lives(peer: &Observed<Peer>, now: Instant) -> bool {
    #[cfg(test)]
    VISITED.set(VISITED.get() + 1);
    matches!(peer.value.owner, Owner::Agent(_)) && now < silent_from(peer)
}

/// A heartbeat that may be ended or removed, in the version that was observed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StaleHeartbeat {
    pub(crate) node: String,
    pub(crate) lease: Box<Lease>,
    pub(crate) since: Instant,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Peers {
    by_node: BTreeMap<String, Observed<Peer>>,
}

impl Peers {
    pub(crate) fn apply(&mut self, lease: &Lease, now: Instant) {
        let Some(node) = node_of(lease) else { return };
        let known = self.by_node.get(node).and_then(|peer| peer.value.lease.as_ref());
        if known.is_some_and(|known| Version::of(lease).is_known_beside(&Version::of(known))) {
            return;
        }
        let peer = Peer {
            owner: match holder(lease) {
                None => Owner::Released,
                Some(holder) if holder == any_agent_of(node).as_str() => Owner::Unknown,
                Some(holder) => Owner::Agent(Identity::of(holder)),
            },
            lease: Some(Box::new(lease.clone())),
        };
        self.by_node.insert(node.to_owned(), Observed::first(peer, now));
    }

    /// The heartbeat was deleted. An agent that stops gives it back instead, so the owner may be alive.
    pub(crate) fn delete(&mut self, lease: &Lease, now: Instant) {
        let Some(peer) = node_of(lease).and_then(|node| self.by_node.get_mut(node)) else { return };
        let same = |known: &Lease| Version::of(known).uid == Version::of(lease).uid;
        if peer.value.lease.as_ref().is_some_and(|known| same(known)) {
            go(peer, now);
        }
    }

    pub(crate) fn replace_all(&mut self, leases: &[Lease], now: Instant) {
        for lease in leases {
            self.apply(lease, now);
        }
        let listed: BTreeSet<&str> = leases.iter().filter_map(node_of).collect();
        for (node, peer) in &mut self.by_node {
            if peer.value.lease.is_some() && !listed.contains(node.as_str()) {
                go(peer, now);
            }
        }
    }

    /// Records that a node without a heartbeat claims an address: its heartbeat is missing from now on.
    pub(crate) fn expect(&mut self, node: &str, now: Instant) {
        let missing = || Observed::first(Peer { owner: Owner::Missing, lease: None }, now);
        self.by_node.entry(node.to_owned()).or_insert_with(missing);
    }

    pub(crate) fn forget_missing(&mut self, keep: impl Fn(&str) -> bool) {
        self.by_node.retain(|node, peer| peer.value.lease.is_some() || keep(node));
    }

    pub(crate) fn term_state(&self, node: &str, identity: &Identity, now: Instant) -> TermState {
        let Some(peer) = self.by_node.get(node) else { return TermState::Silent };
        match &peer.value.owner {
            Owner::Agent(owner) if owner != identity => TermState::Over,
            Owner::Released => TermState::Over,
            _ if now < silent_from(peer) => TermState::Alive,
            _ => TermState::Silent,
        }
    }

    pub(crate) fn live(&self, now: Instant) -> impl Iterator<Item = &str> {
        self.by_node.iter().filter(move |(_, peer)| lives(peer, now)).map(|(node, _)| node.as_str())
    }

    pub(crate) fn is_live(&self, node: &str, now: Instant) -> bool {
        self.by_node.get(node).is_some_and(|peer| lives(peer, now))
    }

    pub(crate) fn silent(&self, now: Instant) -> impl Iterator<Item = StaleHeartbeat> {
        let silent = move |peer: &Observed<Peer>| {
            matches!(peer.value.owner, Owner::Agent(_) | Owner::Unknown) && now >= silent_from(peer)
        };
        self.stale(silent, silent_from)
    }

    /// The nodes whose owners have not created their heartbeats again in time, and since when. Putting one back ends no
    /// term: a living owner renews it, and that of a dead owner becomes silent.
    pub(crate) fn missing(&self, now: Instant) -> impl Iterator<Item = (&str, Instant)> {
        let missing = move |peer: &Observed<Peer>| peer.value.owner == Owner::Missing && now >= silent_from(peer);
        let these = self.by_node.iter().filter(move |(_, peer)| missing(peer));
        these.map(|(node, peer)| (node.as_str(), silent_from(peer)))
    }

    /// The heartbeats that have had no owner for so long that they can be removed.
    pub(crate) fn forgotten(&self, now: Instant) -> impl Iterator<Item = StaleHeartbeat> {
        let old = move |peer: &Observed<Peer>| peer.is_unchanged_for(HEARTBEAT_RETENTION, now);
        let forgotten = move |peer: &Observed<Peer>| peer.value.owner == Owner::Released && old(peer);
        self.stale(forgotten, |peer| peer.end(HEARTBEAT_RETENTION))
    }

    fn stale(
        &self,
        which: impl Fn(&Observed<Peer>) -> bool,
        since: impl Fn(&Observed<Peer>) -> Instant,
    ) -> impl Iterator<Item = StaleHeartbeat> {
        self.by_node.iter().filter(move |(_, peer)| which(peer)).filter_map(move |(node, peer)| {
            Some(StaleHeartbeat { node: node.clone(), lease: peer.value.lease.clone()?, since: since(peer) })
        })
    }

    /// When the next heartbeat becomes silent if it is not renewed, or becomes old enough to be removed.
    pub(crate) fn next_change(&self, now: Instant) -> Option<Instant> {
        let change = |peer: &Observed<Peer>| match peer.value.owner {
            Owner::Released => peer.end(HEARTBEAT_RETENTION),
            _ => silent_from(peer),
        };
        self.by_node.values().map(change).filter(|change| *change > now).min()
    }
}

fn go(peer: &mut Observed<Peer>, now: Instant) {
    peer.value.lease = None;
    // A term that was given back is over, whether its Lease exists or not.
    if matches!(peer.value.owner, Owner::Agent(_) | Owner::Unknown) {
        *peer = Observed::first(Peer { owner: Owner::Missing, lease: None }, now);
    }
}

/// The Node of a heartbeat; `None` if this program can't have written the Lease.
fn node_of(lease: &Lease) -> Option<&str> {
    let node = lease.metadata.annotations.as_ref()?.get(NODE_ANNOTATION)?;
    (lease.metadata.name.as_deref()? == name(node)).then_some(node)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use crate::leases::Role;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::jiff::Timestamp;

    use super::super::heartbeat_state::put_back;
    use super::*;

    fn identity(number: u64) -> Identity {
        Identity::with("a", Role::Agent, number)
    }

    const NO_HOLDER: u64 = 0;
    const UNKNOWN: u64 = 99;

    /// The heartbeat of node `a`.
    fn lease(owner: u64, version: u64) -> Lease {
        let mut lease = put_back("a", Timestamp::UNIX_EPOCH);
        lease.metadata.uid = Some("uid".to_owned());
        lease.metadata.resource_version = Some(version.to_string());
        let holder = match owner {
            NO_HOLDER => String::new(),
            UNKNOWN => any_agent_of("a").to_string(),
            owner => identity(owner).to_string(),
        };
        let lease_duration_seconds = Some(i32::MAX);
        lease.spec = lease.spec.map(|spec| LeaseSpec { holder_identity: Some(holder), lease_duration_seconds, ..spec });
        lease
    }

    #[test]
    fn term_is_alive_silent_or_over_by_its_heartbeat() {
        type Step = (u64, fn(&mut Peers, Instant));
        /// What the peers say about node `a` and its first term.
        #[derive(Clone, Copy, Debug, PartialEq)]
        struct Seen {
            first_term: TermState,
            node_is_alive: bool,
            is_silent: bool,
            is_missing: bool,
        }
        struct Case {
            name: &'static str,
            steps: Vec<Step>,
            after_19_s: Seen,
            after_20_s: Seen,
        }
        const ALIVE: Seen =
            Seen { first_term: TermState::Alive, node_is_alive: true, is_silent: false, is_missing: false };
        const ALIVE_WITHOUT_NODE: Seen = Seen { node_is_alive: false, ..ALIVE };
        const UNKNOWN_NODE: Seen = Seen { first_term: TermState::Silent, ..ALIVE_WITHOUT_NODE };
        const SILENT: Seen = Seen { is_silent: true, ..UNKNOWN_NODE };
        const MISSING: Seen = Seen { is_missing: true, ..UNKNOWN_NODE };
        const OVER: Seen = Seen { first_term: TermState::Over, ..ALIVE_WITHOUT_NODE };
        const NEXT_TERM: Seen = Seen { node_is_alive: true, ..OVER };
        let first: Step = (0, |peers, now| peers.apply(&lease(1, 1), now));
        let gone: Step = (5, |peers, now| peers.delete(&lease(1, 1), now));
        let cases = [
            Case { name: "no heartbeat", steps: vec![], after_19_s: UNKNOWN_NODE, after_20_s: UNKNOWN_NODE },
            Case { name: "first seen", steps: vec![first], after_19_s: ALIVE, after_20_s: SILENT },
            Case {
                name: "renewed",
                steps: vec![first, (5, |peers, now| peers.apply(&lease(1, 2), now))],
                after_19_s: ALIVE,
                after_20_s: ALIVE,
            },
            Case {
                name: "seen again unchanged",
                steps: vec![first, (5, |peers, now| peers.replace_all(&[lease(1, 1)], now))],
                after_19_s: ALIVE,
                after_20_s: SILENT,
            },
            Case {
                name: "given back",
                steps: vec![first, (5, |peers, now| peers.apply(&lease(NO_HOLDER, 2), now))],
                after_19_s: OVER,
                after_20_s: OVER,
            },
            Case {
                name: "an old version after a new one",
                steps: vec![
                    (0, |peers, now| peers.apply(&lease(NO_HOLDER, 2), now)),
                    (5, |peers, now| peers.apply(&lease(1, 1), now)),
                ],
                after_19_s: OVER,
                after_20_s: OVER,
            },
            Case {
                name: "another term",
                steps: vec![first, (5, |peers, now| peers.apply(&lease(2, 2), now))],
                after_19_s: NEXT_TERM,
                after_20_s: NEXT_TERM,
            },
            Case { name: "deleted", steps: vec![first, gone], after_19_s: MISSING, after_20_s: MISSING },
            Case {
                name: "put back",
                steps: vec![first, gone, (15, |peers, now| peers.apply(&lease(UNKNOWN, 3), now))],
                after_19_s: ALIVE_WITHOUT_NODE,
                after_20_s: ALIVE_WITHOUT_NODE,
            },
            Case {
                name: "put back, and silent",
                steps: vec![first, (0, |peers, now| peers.apply(&lease(UNKNOWN, 3), now))],
                after_19_s: ALIVE_WITHOUT_NODE,
                after_20_s: SILENT,
            },
            Case {
                name: "given back, and removed",
                steps: vec![
                    first,
                    (5, |peers, now| peers.apply(&lease(NO_HOLDER, 2), now)),
                    (6, |peers, now| peers.replace_all(&[], now)),
                ],
                after_19_s: OVER,
                after_20_s: OVER,
            },
        ];
        for Case { name, steps, after_19_s, after_20_s } in cases {
            let begin = Instant::now();
            let at = |seconds| begin + Duration::from_secs(seconds);
            let mut peers = Peers::default();
            for (seconds, step) in steps {
                step(&mut peers, at(seconds));
            }
            for (seconds, expected) in [(19, after_19_s), (20, after_20_s)] {
                let now = at(seconds);
                let found = Seen {
                    first_term: peers.term_state("a", &identity(1), now),
                    node_is_alive: peers.live(now).eq(["a"]),
                    is_silent: peers.silent(now).count() == 1,
                    is_missing: peers.missing(now).count() == 1,
                };
                assert_eq!(found, expected, "{name}, {seconds} s");
            }
        }
    }

    #[test]
    fn node_without_heartbeat_is_missing_after_a_wait_until_it_is_forgotten() {
        let begin = Instant::now();
        let mut peers = Peers::default();
        peers.expect("a", begin);
        let missing = ("a", begin + MISSING_GRACE);
        assert_eq!(peers.missing(begin).collect::<Vec<_>>(), vec![]);
        assert_eq!(peers.next_change(begin), Some(begin + MISSING_GRACE));
        peers.expect("a", begin + MISSING_GRACE);
        assert_eq!(peers.missing(begin + MISSING_GRACE).collect::<Vec<_>>(), vec![missing]);
        peers.forget_missing(|_| false);
        assert_eq!(peers.missing(begin + MISSING_GRACE).collect::<Vec<_>>(), vec![]);
    }

    #[test]
    fn heartbeat_without_holder_is_removed_when_it_is_old() {
        let begin = Instant::now();
        let mut peers = Peers::default();
        peers.apply(&lease(NO_HOLDER, 2), begin);
        assert_eq!(peers.next_change(begin), Some(begin + HEARTBEAT_RETENTION));
        assert_eq!(peers.forgotten(begin + HEARTBEAT_RETENTION - Duration::from_secs(1)).count(), 0);
        let lease = Box::new(lease(NO_HOLDER, 2));
        let expected = vec![StaleHeartbeat { node: "a".to_owned(), lease, since: begin + HEARTBEAT_RETENTION }];
        assert_eq!(peers.forgotten(begin + HEARTBEAT_RETENTION).collect::<Vec<_>>(), expected);
    }
}
