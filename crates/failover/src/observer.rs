//! Determines which node holds which address, for a program that watches the Leases but is not an agent.

use std::collections::BTreeMap;
use std::net::IpAddr;

use clusterip_core::annotations::LEASE_LABEL;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::external_claims::{EXTERNAL, HolderClaim};
use super::heartbeat_state::AGENT;
use super::peers::{Peers, TermState};

/// The heartbeats and claims of agents, as a watch has delivered them.
#[derive(Default)]
pub struct Observer {
    peers: Peers,
    claims: BTreeMap<IpAddr, HolderClaim>,
}

impl Observer {
    /// The label selector of the Leases to watch.
    pub fn labels() -> String {
        format!("{LEASE_LABEL} in ({EXTERNAL},{AGENT})")
    }

    /// Adds or updates a Lease.
    pub fn apply(&mut self, lease: &Lease, now: Instant) {
        self.peers.apply(lease, now);
        if let Some(claim) = HolderClaim::of(lease) {
            self.claims.insert(claim.address, claim);
        }
    }

    /// Records that a Lease was deleted.
    pub fn delete(&mut self, lease: &Lease, now: Instant) {
        self.peers.delete(lease, now);
        if let Some(claim) = HolderClaim::of(lease) {
            self.claims.remove(&claim.address);
        }
    }

    /// Replaces the recorded state with a complete list of Leases.
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

    /// Every address that is held, with the node that holds it.
    pub fn holders(&self, now: Instant) -> BTreeMap<IpAddr, String> {
        let holder = |address: &IpAddr| Some((*address, self.holder(*address, now)?.to_owned()));
        self.claims.keys().filter_map(holder).collect()
    }

    /// When the state of an agent changes next if its heartbeat is not renewed.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        self.peers.next_change(now)
    }
}
