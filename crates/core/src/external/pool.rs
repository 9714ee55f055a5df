//! Determines which external addresses a Service may have.

use std::net::IpAddr;

use super::held::Holders;
use crate::address::Family;
use crate::lookups::LookupError;
use crate::services::LazyNamespace;
use crate::services::Service;
use crate::services::first_mismatch;
use crate::settings::{ExternalPool, ExternalSettings};

/// A Service, and the information that decides which addresses it may have.
pub(super) struct Claimant<'a> {
    pub(super) service: &'a Service,
    pub(super) external: &'a ExternalSettings,
    pub(super) namespace: &'a LazyNamespace<'a>,
    pub(super) holders: Holders<'a>,
}

/// The reason for refusing an address of [`Right::Outside`] that the Service requests from this policy.
pub(super) const OUTSIDE: &str = "lies in no pool of external addresses";

/// Whether a Service may have an address.
pub(super) enum Right<'a> {
    /// The address is in no pool.
    Outside,
    /// The address is in this pool, and the Service may have it.
    Free(&'a ExternalPool),
    /// The Service may not have the address. The text continues a sentence that begins with the address.
    Refused(String),
}

impl<'a> Claimant<'a> {
    /// Determines whether the Service may have `address`.
    pub(super) fn right_to(&self, address: IpAddr) -> Result<Right<'a>, LookupError> {
        let Some(pool) = self.external.pool_of(address) else { return Ok(Right::Outside) };
        let name = &pool.name;
        if !pool.candidates(Family::of(address)).contains(address) {
            let excluded = pool.exclude.iter().any(|range| range.contains(address));
            let why = if excluded { "is excluded from" } else { "is the network or broadcast address of a range of" };
            return Ok(Right::Refused(format!("{why} pool {name:?}")));
        }
        if let Some(condition) = first_mismatch(&pool.scope, self.service, self.namespace)? {
            let reason =
                format!("lies in pool {name:?}, which does not admit this Service: {condition} does not match");
            return Ok(Right::Refused(reason));
        }
        Ok(match self.holders.other(address)? {
            Some(holder) => Right::Refused(format!("of pool {name:?} is held by {holder}")),
            None => Right::Free(pool),
        })
    }

    /// The first pool, in the order of the settings, that admits the Service and has one of `families`.
    pub(super) fn own_pool(&self, families: &[Family]) -> Result<Option<&'a ExternalPool>, LookupError> {
        for pool in self.external.pools.iter().filter(|pool| families.iter().any(|family| pool.has(*family))) {
            if first_mismatch(&pool.scope, self.service, self.namespace)?.is_none() {
                return Ok(Some(pool));
            }
        }
        Ok(None)
    }
}
