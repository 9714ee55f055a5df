//! How an agent gives addresses back: those that are no longer assigned to its node, and those that the network of its
//! node can't hold.
//!
//! An agent gives an address back in three steps: the desired state no longer contains the address, the network
//! releases it, and only then the agent writes a claim without a holder. If this node could not hold the address, the
//! agent leaves it to other nodes for a while.

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::super::agent_plan::{LeaseWrite, Subject, WriteKind};
use super::super::external_claims::lease;
use super::super::heartbeat_state::Term;
use super::super::next_deadline::NextDeadline;
use super::super::timing::{AWAY, MAX_TIME_AWAY};
use super::AgentState;
use super::claims::Claimed;

impl AgentState {
    /// Gives back the addresses that were claimed in this term and are no longer assigned to this node, once they
    /// are off the network.
    pub(super) fn give_back(
        &self,
        term: &Term,
        clock: Timestamp,
        deadline: &mut NextDeadline,
        writes: &mut Vec<LeaseWrite>,
    ) {
        for (address, claimed) in &self.claims {
            if let Claimed::Stored { lease: before, holder: Some(holder) } = claimed
                && *holder == term.identity
                && !self.is_wanted(*address, deadline.now)
                && self.is_off(*address)
                && self.may_write(*address, deadline)
            {
                let lease = Box::new(lease(*address, None, Some(before), clock));
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
    pub(super) fn give_up(&mut self, now: Instant) -> Vec<IpAddr> {
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
    pub(super) fn left_to_others_until(&self, address: IpAddr, now: Instant) -> Option<Instant> {
        let until = self.histories.get(&address).and_then(|history| history.left_to_others_until);
        until.filter(|until| now < *until).filter(|_| self.has_others(address, now))
    }

    /// Until when this node does not claim the address: either it could not hold this address, or it holds no address
    /// and could not hold another one. `None` if it may claim the address.
    pub(super) fn no_claim_until(&self, address: IpAddr, now: Instant) -> Option<Instant> {
        let of_node = || {
            let some = self.mine.is_empty() && self.has_others(address, now);
            let left = self.histories.values().filter_map(|history| history.left_to_others_until);
            left.filter(|until| now < *until).max().filter(|_| some)
        };
        self.left_to_others_until(address, now).or_else(of_node)
    }
}
