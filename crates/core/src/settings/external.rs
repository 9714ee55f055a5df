//! The settings about external addresses.

use std::net::IpAddr;

use super::AdmissionScope;
use crate::address::{Candidates, Family, Span};
use crate::label_selector::LabelSelector;

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
}
