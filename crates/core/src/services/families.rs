//! Determines the IP families of a Service's addresses.

use super::object::{FamilyPolicy, Service};
use crate::address::Family;
use crate::settings::{Pool, Settings};

/// The families to allocate from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// The family of `clusterIP`.
    pub primary: Family,
    /// The family of the second address; `None` if there is to be one address.
    pub second: Option<Second>,
}

/// The family of a second address, and whether the Service requires it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    /// The family.
    pub family: Family,
    /// Whether the Service requires it with `RequireDualStack`.
    pub required: bool,
}

/// The families in which `service` gets addresses from `pool`.
///
/// The primary family is the first of `spec.ipFamilies`; otherwise that of the primary Service range; otherwise IPv4 if
/// the pool has an IPv4 range. There is a second family with `RequireDualStack`, and with `PreferDualStack` if the
/// settings name a Service range of it: on a single-stack cluster the API server refuses two addresses.
pub fn families(service: &Service, pool: &Pool, settings: &Settings) -> Families {
    let primary = service
        .families
        .first()
        .copied()
        .or_else(|| settings.service_cidrs.first().map(|cidr| Family::of(cidr.addr())))
        .unwrap_or(if pool.has(Family::V4) { Family::V4 } else { Family::V6 });
    Families { primary, second: second(service, primary.other(), settings) }
}

/// The second family, if `service` is to have an address of `family` beside its first one.
pub fn second(service: &Service, family: Family, settings: &Settings) -> Option<Second> {
    match service.family_policy {
        FamilyPolicy::SingleStack => None,
        FamilyPolicy::PreferDualStack => settings.cluster_has(family).then_some(Second { family, required: false }),
        FamilyPolicy::RequireDualStack => Some(Second { family, required: true }),
    }
}
