//! The heartbeats of all agents, as this agent has observed them.

use std::collections::{BTreeMap, BTreeSet};

use clusterip_core::annotations::NODE_ANNOTATION;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::heartbeat_state::{any_agent_of, holder, name};
use super::timing::{Failover, HEARTBEAT_RETENTION, MISSING_GRACE};
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

/// When the heartbeat becomes silent, if it does not change before.
fn silent_from(peer: &Observed<Peer>) -> Instant {
    let failover = match (&peer.value.owner, &peer.value.lease) {
        (Owner::Missing, _) => return peer.end(MISSING_GRACE),
        (Owner::Agent(_), Some(lease)) => Failover::of(lease),
        // The owner may be one that relies on its heartbeat for a long time.
        _ => Failover::default(),
    };
    peer.end(failover.heartbeat().lease)
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
mod tests;
