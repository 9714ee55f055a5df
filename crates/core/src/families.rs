//! Which families a Service's addresses are of.

use crate::address::Family;
use crate::service::{FamilyPolicy, Service};
use crate::settings::{Pool, Settings};

/// The families to allocate from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    /// Of `clusterIP`.
    pub primary: Family,
    /// Of the second address, if there is to be one.
    pub second: Option<Second>,
}

/// A second family, and whether the Service can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Second {
    /// The family.
    pub family: Family,
    /// Whether the Service asks for it with `RequireDualStack`.
    pub required: bool,
}

/// The families that `service` asks for, of `pool`.
///
/// The primary one is the first of `spec.ipFamilies`; else that of the primary Service range; else
/// IPv4 where the pool has it. There is a second one with `RequireDualStack`, and with
/// `PreferDualStack` where the cluster is known to have it: on a single-stack cluster the API server
/// refuses two addresses.
pub fn families(service: &Service, pool: &Pool, settings: &Settings) -> Families {
    let primary = service
        .families
        .first()
        .copied()
        .or_else(|| settings.service_cidrs.first().map(|cidr| Family::of(cidr.addr())))
        .unwrap_or(if pool.has(Family::V4) { Family::V4 } else { Family::V6 });
    Families { primary, second: second(service, primary.other(), settings) }
}

/// Whether `service` is to have an address of `family` beside its first one.
pub fn second(service: &Service, family: Family, settings: &Settings) -> Option<Second> {
    match service.family_policy {
        FamilyPolicy::SingleStack => None,
        FamilyPolicy::PreferDualStack => settings.cluster_has(family).then_some(Second { family, required: false }),
        FamilyPolicy::RequireDualStack => Some(Second { family, required: true }),
    }
}
