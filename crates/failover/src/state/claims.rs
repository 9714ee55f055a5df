//! The claims of all addresses, as this agent has observed them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::leases::identity::Identity;
use crate::leases::version::Version;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::super::external_claims::{HolderClaim, node_of as node_of_identity};
use super::AgentState;

/// The claim of an address, as this agent has observed it last.
#[derive(Clone, Debug)]
pub(super) enum Claimed {
    /// The claim exists. Without a holder, it was given back.
    Stored { lease: Box<Lease>, holder: Option<Identity> },
    /// The claim was deleted, but not given back. Its holder counts as the holder for the duration of a heartbeat,
    /// because it may not have noticed the deletion yet.
    Deleted { holder: Identity, since: Instant },
}

impl Claimed {
    /// The Lease; `None` if it was deleted.
    pub(super) fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Stored { lease, .. } => Some(lease),
            Self::Deleted { .. } => None,
        }
    }

    /// The node that the claim names or, if it was deleted, named.
    pub(super) fn node(&self) -> Option<&str> {
        match self {
            Self::Stored { holder, .. } => holder.as_ref().and_then(node_of_identity),
            Self::Deleted { holder, .. } => node_of_identity(holder),
        }
    }
}

impl AgentState {
    /// Adds or updates a claim.
    pub(super) fn apply_claim(&mut self, lease: &Lease, now: Instant) {
        let Some(HolderClaim { address, holder }) = HolderClaim::of(lease) else { return };
        if let Some(Claimed::Stored { lease: known, .. }) = self.claims.get(&address) {
            let (known, version) = (Version::of(known), Version::of(lease));
            if known == version || version.is_older_than(&known) {
                return;
            }
        }
        if let Some(node) = holder.as_ref().and_then(node_of_identity) {
            self.claiming.insert(node.to_owned(), now);
        }
        self.claims.insert(address, Claimed::Stored { lease: Box::new(lease.clone()), holder });
        self.check(address);
    }

    /// Records that a claim was deleted.
    pub(super) fn delete_claim(&mut self, lease: &Lease, now: Instant) {
        let Some(HolderClaim { address, .. }) = HolderClaim::of(lease) else { return };
        if let Some(Claimed::Stored { lease: known, .. }) = self.claims.get(&address)
            && Version::of(known).uid == Version::of(lease).uid
        {
            self.claim_gone(address, now);
        }
    }

    /// Replaces the recorded claims with a complete list.
    pub(super) fn replace_all_claims(&mut self, leases: &[Lease], now: Instant) {
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
    pub(super) fn expect_heartbeats(&mut self, now: Instant) {
        for node in self.claims.values().filter_map(Claimed::node) {
            self.peers.expect(node, now);
        }
    }

    /// Whether the claim of the address names the current term of this agent.
    pub(super) fn is_claimed_here(&self, address: IpAddr) -> bool {
        matches!((self.claims.get(&address), &self.term),
            (Some(Claimed::Stored { holder: Some(holder), .. }), Some(term)) if *holder == term.identity)
    }
}
