//! Simulates how many Services that are created at the same moment lose their address to another one. The simulation
//! runs the code that picks addresses, with evaluations that all see the same state.
//!
//! policy-server evaluates requests in parallel and remembers none of them. In the worst case no evaluation sees an
//! address that a parallel one has picked, not even with its last look-up. If an address is picked several times, the
//! API server accepts one of the Services.

use std::cell::Cell;
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};

use clusterip_core::address::{Candidates, Order, Range};
use clusterip_core::label_selector::Labels;
use clusterip_core::lookups::{Cluster, LookupError, NamespaceMeta, Reserve, Selected};
use clusterip_core::services::Picker;
use clusterip_core::settings::Lookups;
use clusterip_core::workload::WorkloadKind;
use ipnet::{IpNet, Ipv4Net};

/// How an address is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the policy, in this order.
    Policy(Order),
    /// Any free address with equal probability.
    Random,
}

/// A pool, and the number of parallel evaluations.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The prefix length of the pool's range.
    pub prefix: u8,
    /// The percentage of the pool that is used beforehand.
    pub used: usize,
    /// How many evaluations see the same state.
    pub parallel: usize,
}

impl Load {
    /// The fraction of the Services that are refused, over this many rounds with different Services and different used
    /// addresses. The result is the same in every run.
    pub fn refused(self, way: Way, rounds: u64) -> Result<f64, Box<dyn std::error::Error>> {
        let cidr = IpNet::V4(Ipv4Net::new(Ipv4Addr::new(10, 96, 0, 0), self.prefix)?);
        let candidates = Candidates::new(&[Range { cidr, reserved: 0, exclude: &[], for_services: &[] }], false);
        let band = candidates.bands.first().ok_or("a pool without addresses")?;
        let usable: Vec<IpAddr> = (0..band.count()).filter_map(|position| band.address(position)).collect();
        let mut refused = 0;
        for round in 0..rounds {
            // The states are far apart, so that rounds do not share a part of the sequence.
            let numbers = Numbers(Cell::new(round << 32));
            let mut shuffled = usable.clone();
            numbers.shuffle(&mut shuffled);
            let free = shuffled.split_off(usable.len() * self.used / 100);
            let state = State(shuffled.into_iter().collect());
            let mut picked = HashSet::new();
            for number in 0..self.parallel {
                let address = match way {
                    Way::Random => free[numbers.below(free.len())],
                    Way::Policy(order) => {
                        let name = format!("web-{round}-{number}");
                        let key = format!("shop/{name}");
                        Picker::new(&state, order, key, ("shop", &name)).pick(&candidates)?.ok_or("a full pool")?
                    }
                };
                refused += usize::from(!picked.insert(address));
            }
        }
        Ok(refused as f64 / (self.parallel as f64 * rounds as f64))
    }

    /// As [`Self::refused`] for [`Way::Random`], by calculation: an address out of `free` is missed by all evaluations
    /// with a probability of (1 - 1/free)^parallel.
    pub fn refused_at_random(self) -> f64 {
        let usable = 2_f64.powi(32 - i32::from(self.prefix)) - 2.0;
        let free = usable - (usable * self.used as f64 / 100.0).floor();
        let parallel = self.parallel as f64;
        1.0 - free * (1.0 - (1.0 - 1.0 / free).powf(parallel)) / parallel
    }
}

/// The used addresses, for every evaluation of a round.
struct State(HashSet<IpAddr>);

impl Cluster for State {
    fn workloads(&self, _: &WorkloadKind, _: &str, _: Lookups, _: &Labels) -> Result<Selected, LookupError> {
        Ok(Selected::default())
    }

    fn namespace(&self, _: &str) -> Result<Option<NamespaceMeta>, LookupError> {
        Ok(None)
    }

    fn node_labels(&self, _: &str) -> Result<Option<Labels>, LookupError> {
        Ok(None)
    }

    fn runtime_class_nodes(&self, _: &str) -> Result<Option<Labels>, LookupError> {
        Ok(None)
    }

    fn external_addresses(&self, _: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        Ok(())
    }

    fn service_addresses(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), LookupError> {
        self.0.iter().for_each(|address| visit("other", "other", *address));
        Ok(())
    }

    fn node_blocks(&self, _: &[IpNet], _: &mut dyn FnMut(&str, IpNet)) -> Result<(), LookupError> {
        Ok(())
    }

    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError> {
        Ok(if self.0.contains(&address) { Reserve::Taken } else { Reserve::Free })
    }
}

/// A pseudorandom sequence that is the same in every run (SplitMix64).
struct Numbers(Cell<u64>);

impl Numbers {
    fn next(&self) -> u64 {
        self.0.set(self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mixed = (self.0.get() ^ (self.0.get() >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn shuffle(&self, items: &mut [IpAddr]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}
