//! Counts how the addresses of a range are used, for the ranges of Services and for those of external addresses.

use std::net::IpAddr;

use clusterip_core::address::Candidates;

use super::model::State;

/// How many addresses of a range are used, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// May be assigned.
    pub usable: u128,
    /// Usable, and used.
    pub used: u128,
    /// Usable, and in flight.
    pub in_flight: u128,
    /// Usable, and free now.
    pub free: u128,
    /// Used, but not usable.
    pub used_anyway: u128,
}

impl Usage {
    /// The usage of a range of which the `candidates` may be assigned, given its addresses that are used or in flight.
    pub fn of(candidates: &Candidates, addresses: impl IntoIterator<Item = (IpAddr, State)>) -> Self {
        let mut usage = Self { usable: candidates.count(), ..Self::default() };
        for (address, state) in addresses {
            match (candidates.contains(address), state) {
                (true, State::InFlight) => usage.in_flight += 1,
                (true, _) => usage.used += 1,
                (false, _) => usage.used_anyway += 1,
            }
        }
        usage.free = usage.usable.saturating_sub(usage.used).saturating_sub(usage.in_flight);
        usage
    }
}
