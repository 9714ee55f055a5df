//! The settings about external addresses.

use std::net::IpAddr;

use super::AdmissionScope;
use crate::address::{Candidates, Family, Span};
use crate::label_selector::LabelSelector;
use crate::services::Service;

/// `external`: which Service may have which external addresses. Without pools, external addresses are left unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalSettings {
    /// `external.pools`, in the order in which they are tried.
    pub pools: Vec<ExternalPool>,
    /// `external.loadBalancerClass`: Services of type LoadBalancer with this class get an address.
    pub load_balancer_class: String,
    /// `external.default`: whether Services of type LoadBalancer without a class get an address too.
    pub default: bool,
}

/// A pool of external addresses, the Services it is for, and the nodes that may hold its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalPool {
    /// A DNS label, unique among the external pools.
    pub name: String,
    /// `cidrs`: CIDRs and ranges. They overlap neither each other nor any other range of the settings.
    pub ranges: Vec<Span>,
    /// Ranges and addresses that no Service may have.
    pub exclude: Vec<Span>,
    /// `match`: the Services that the pool is for.
    pub scope: AdmissionScope,
    /// Selects the nodes that may hold addresses of the pool.
    pub nodes: LabelSelector,
}

impl Default for ExternalSettings {
    fn default() -> Self {
        Self { pools: Vec::new(), load_balancer_class: "clusterip-policy/external".to_owned(), default: false }
    }
}

impl ExternalSettings {
    /// Whether a Service gets its external addresses from this policy: there are pools, the type is `LoadBalancer`, and
    /// the class is [`Self::load_balancer_class`]. With `external.default`, Services without a class count too.
    ///
    /// The rule is that of Kubernetes: `spec.loadBalancerClass` selects one implementation, and one of them may be the
    /// default for Services without a class.
    pub fn is_ours(&self, service: &Service) -> bool {
        let class = service.load_balancer_class.as_ref();
        let is_our_class = class.map_or(self.default, |class| *class == self.load_balancer_class);
        service.load_balancer && is_our_class && !self.pools.is_empty()
    }

    /// The pool with a range that contains `address`. Excluded addresses count too.
    pub fn pool_of(&self, address: IpAddr) -> Option<&ExternalPool> {
        self.pools.iter().find(|pool| pool.contains(address))
    }
}

impl ExternalPool {
    /// Whether one of the ranges contains the address. Excluded addresses count too.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Whether the pool has a range of this family.
    pub fn has(&self, family: Family) -> bool {
        self.ranges.iter().any(|range| range.family() == family)
    }

    /// The addresses of `family` that a Service may have: without `exclude`, and without the network address and the
    /// IPv4 broadcast address of a CIDR with more than two addresses.
    pub fn candidates(&self, family: Family) -> Candidates {
        Candidates::of_spans(&self.ranges, &self.exclude, family)
    }

    /// The addresses of [`Self::candidates`] that lie in `range`, one of the ranges.
    pub fn candidates_in(&self, range: &Span) -> Candidates {
        Candidates::of_spans(std::slice::from_ref(range), &self.exclude, range.family())
    }

    /// The parts of `range`, one of the ranges, that no Service may have, in ascending order and as few as possible:
    /// all addresses of it that [`Self::candidates_in`] leaves out.
    pub fn withheld_spans(&self, range: &Span) -> Vec<Span> {
        Candidates::withheld_spans(range, &self.exclude)
    }
}
