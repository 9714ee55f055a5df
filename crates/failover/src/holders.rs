//! Which node holds which address, for programs that are not agents: [`Observer`] for a program that watches the
//! Leases, [`HolderSnapshot`] for a program that reads them once.
//!
//! Agents watch a heartbeat for its whole duration to tell a silent agent from a living one. A program that reads the
//! Leases once can only compare the renewal time in the heartbeat with a clock. If that clock differs from the clock of
//! the node by more than the duration of a heartbeat, the result is wrong.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_core::annotations::{LEASE_LABEL, NODE_ANNOTATION};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use crate::claims::{EXTERNAL, HolderClaim};
use crate::heartbeat_state::{AGENT, any_agent_of, holder};
use crate::peers::{Peers, TermState};
use crate::timing::LONGEST_HEARTBEAT;

/// The heartbeats and claims of agents, as a watch has delivered them.
#[derive(Default)]
pub struct Observer {
    peers: Peers,
    claims: BTreeMap<IpAddr, HolderClaim>,
}

impl Observer {
    pub fn labels() -> String {
        format!("{LEASE_LABEL} in ({EXTERNAL},{AGENT})")
    }

    pub fn apply(&mut self, lease: &Lease, now: Instant) {
        self.peers.apply(lease, now);
        self.claims.extend(HolderClaim::of(lease).map(|claim| (claim.address, claim)));
    }

    pub fn delete(&mut self, lease: &Lease, now: Instant) {
        self.peers.delete(lease, now);
        if let Some(claim) = HolderClaim::of(lease) {
            self.claims.remove(&claim.address);
        }
    }

    pub fn replace_all(&mut self, leases: &[Lease], now: Instant) {
        self.peers.replace_all(leases, now);
        self.claims = leases.iter().filter_map(HolderClaim::of).map(|claim| (claim.address, claim)).collect();
    }

    /// The node that holds an address; `None` if the address is free or its holder is not known to be alive.
    pub fn holder(&self, address: IpAddr, now: Instant) -> Option<&str> {
        let claim = self.claims.get(&address)?;
        let (node, identity) = (claim.node()?, claim.holder.as_ref()?);
        (self.peers.term_state(node, identity, now) == TermState::Alive).then_some(node)
    }

    pub fn holders(&self, now: Instant) -> BTreeMap<IpAddr, String> {
        let holder = |address: &IpAddr| Some((*address, self.holder(*address, now)?.to_owned()));
        self.claims.keys().filter_map(holder).collect()
    }

    /// When the state of an agent changes next if its heartbeat is not renewed.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        self.peers.next_change(now)
    }
}

/// The heartbeats and claims of agents at one moment.
#[derive(Clone, Debug, Default)]
pub struct HolderSnapshot {
    claims: BTreeMap<IpAddr, HolderClaim>,
    heartbeats: BTreeMap<String, Lease>,
    /// The current time by the clock of the program that reads the Leases; `None` if unknown.
    now: Option<Timestamp>,
    newest: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub node: String,
    pub renewal: Renewal,
}

/// Whether the heartbeat of the holder confirms a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The agent that wrote the claim has renewed its heartbeat within the heartbeat's duration.
    Renewed,
    Missing,
    GivenBack,
    /// An agent on that node has begun another term since; claims of the earlier term are no longer valid.
    Replaced,
    Silent,
}

impl Renewal {
    /// Why the node no longer holds the address; `None` if it does.
    pub fn problem(self) -> Option<&'static str> {
        match self {
            Self::Renewed => None,
            Self::Missing => Some("its agent has no heartbeat"),
            Self::GivenBack => Some("its agent has given its heartbeat back"),
            Self::Replaced => Some("its agent has begun a new term since"),
            Self::Silent => Some("its agent has not renewed its heartbeat in time"),
        }
    }
}

impl HolderSnapshot {
    /// Starts without Leases at the time `now`; without `now`, the newest time in any Lease is used instead.
    pub fn new(now: Option<Timestamp>) -> Self {
        Self { now, ..Self::default() }
    }

    /// Adds a Lease. Leases of other programs are used too: the current time is at least the newest time in any Lease.
    pub fn apply(&mut self, lease: &Lease) {
        let times = lease.spec.iter().flat_map(|spec| [&spec.renew_time, &spec.acquire_time]);
        self.newest = times.flatten().map(|time| time.0).chain(self.newest).max();
        match lease.metadata.labels.as_ref().and_then(|labels| labels.get(LEASE_LABEL)).map(String::as_str) {
            Some(EXTERNAL) => self.claims.extend(HolderClaim::of(lease).map(|claim| (claim.address, claim))),
            Some(AGENT) => {
                let node = lease.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NODE_ANNOTATION));
                self.heartbeats.extend(node.map(|node| (node.clone(), lease.clone())));
            }
            _ => {}
        }
    }

    /// The node that holds an address according to its claim; `None` without a claim or if it was given back.
    pub fn holder(&self, address: IpAddr) -> Option<Holder> {
        let claim = self.claims.get(&address)?;
        let node = claim.node()?.to_owned();
        Some(Holder { renewal: self.renewal(claim, &node), node })
    }

    pub fn all(&self) -> impl Iterator<Item = (IpAddr, Holder)> + '_ {
        self.claims.keys().filter_map(|address| Some((*address, self.holder(*address)?)))
    }

    fn renewal(&self, claim: &HolderClaim, node: &str) -> Renewal {
        let Some(heartbeat) = self.heartbeats.get(node) else { return Renewal::Missing };
        match holder(heartbeat) {
            None => return Renewal::GivenBack,
            // Other agents put the heartbeat back for the living agent, which has not renewed it yet.
            Some(holder) if holder == any_agent_of(node).as_str() => {}
            Some(holder) if claim.holder.as_ref().is_some_and(|claimed| claimed.as_str() == holder) => {}
            Some(_) => return Renewal::Replaced,
        }
        let renewed = heartbeat.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        match (self.now.or(self.newest), renewed, SignedDuration::try_from(LONGEST_HEARTBEAT)) {
            (Some(now), Some(renewed), Ok(duration)) if now.duration_since(renewed) <= duration => Renewal::Renewed,
            _ => Renewal::Silent,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
