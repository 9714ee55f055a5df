//! What is observed of a cluster that is renumbered.

use std::collections::BTreeMap;

use ipnet::IpNet;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The ServiceCIDRs, by their names.
    pub service_cidrs: BTreeMap<String, ServiceCidr>,
    /// The reports of API servers whose flag differs from the present default ServiceCIDR.
    pub other_flags: Vec<String>,
    /// The Pods of API servers whose flag is not the new one.
    pub old_flags: Vec<String>,
    /// The API servers whose certificates do not name the new address of `default/kubernetes`.
    pub old_certificates: Vec<String>,
    /// Whether a pool has addresses of the old, and of the new ranges.
    pub has_old_pools: bool,
    pub has_new_pools: bool,
    /// The state of each swap, in the order of the record.
    pub swaps: Vec<SwapState>,
    pub has_trigger: bool,
    /// For each Service that has the new address of a swap, a text that says so.
    pub taken: Vec<String>,
    /// The Services that have addresses of the old and of the new ranges, without those of swaps and temporary ones.
    pub left_old: Vec<String>,
    pub left_new: Vec<String>,
    /// What still uses the old addresses.
    pub users_of_old: Vec<String>,
    /// Whether this run of the command has moved the Services, and has replaced the default ServiceCIDR.
    pub has_moved: bool,
    pub has_replaced_default: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCidr {
    pub cidrs: Vec<IpNet>,
    pub is_being_deleted: bool,
    /// Whether every API server has had the time to compare it with its flag.
    pub is_settled: bool,
}

/// Which addresses the Service of a swap, or its alias, holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Held {
    #[default]
    Absent,
    Old,
    New,
    /// Other addresses, or another client has created a Service with the name of the alias.
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SwapState {
    pub service: Held,
    pub alias: Held,
    /// Whether the copied EndpointSlices equal those of the Service.
    pub has_equal_copies: bool,
    pub has_copies: bool,
    /// Whether the control plane lists ready endpoints of the Service and of its alias, as far as there are any.
    pub has_own_endpoints: bool,
}
