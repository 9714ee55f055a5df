//! The settings about external addresses.

use std::net::IpAddr;

use super::Fence;
use crate::address::{Candidates, Family, Span};
use crate::label_selector::LabelSelector;

/// `external`: which Service may have which addresses outside of the cluster. Without pools nothing is done
/// about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalSettings {
    /// `external.pools`, in the order in which they are tried.
    pub pools: Vec<ExternalPool>,
    /// `external.loadBalancerClass`: Services of type LoadBalancer of this class get an address.
    pub load_balancer_class: String,
    /// `external.default`: whether those without a class get one, too.
    pub default: bool,
}

/// A pool of external addresses, the Services it is for, and the nodes that may hold its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExternalPool {
    /// Unique among the external pools, a DNS label.
    pub name: String,
    /// `cidrs`: its CIDRs and ranges; they overlap neither each other nor anything else of the settings.
    pub ranges: Vec<Span>,
    /// What else nobody may have.
    pub exclude: Vec<Span>,
    /// `match`: which Services it is for.
    pub fence: Fence,
    /// The labels of the nodes that may hold its addresses.
    pub nodes: LabelSelector,
}

impl Default for ExternalSettings {
    fn default() -> Self {
        Self { pools: Vec::new(), load_balancer_class: "clusterip-policy/external".to_owned(), default: false }
    }
}

impl ExternalSettings {
    /// The pool that `address` lies in, excluded or not.
    pub fn pool_of(&self, address: IpAddr) -> Option<&ExternalPool> {
        self.pools.iter().find(|pool| pool.contains(address))
    }
}

impl ExternalPool {
    /// Whether an address lies in one of its ranges, excluded or not.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(address))
    }

    /// Whether it has a range of this family.
    pub fn has(&self, family: Family) -> bool {
        self.ranges.iter().any(|range| range.family() == family)
    }

    /// The addresses of `family` that a Service may have: without `exclude`, and of a CIDR of more than two
    /// without network and broadcast address.
    pub fn candidates(&self, family: Family) -> Candidates {
        Candidates::of_spans(&self.ranges, &self.exclude, family)
    }
}
