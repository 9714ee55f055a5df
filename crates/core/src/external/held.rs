//! Which external addresses a Service may have: which pool admits it, and which Service has which address, as the host
//! sent it or as it was looked up.

use std::cell::OnceCell;
use std::net::IpAddr;

use super::stored::recorded;
use crate::address::Family;
use crate::label_selector::Labels;
use crate::lookups::{Cluster, LazyNamespace, LookupError};
use crate::service::Service;
use crate::services::first_mismatch;
use crate::settings::{ExternalPool, ExternalSettings};

/// The answer of a host that assigns external addresses: the holder of an address of a pool, as `namespace/name`, which a
/// blank and a remark for messages may follow; `None` if the address is free. If an address has several holders, the
/// first one counts.
///
/// The host must know each address of the external pools that a Service has or claims, see [`super::stored::in_use`],
/// and each address in flight. It remembers the addresses that it gets back.
pub type HolderOf<'a> = dyn Fn(IpAddr) -> Option<String> + 'a;

/// A Service, and the information that decides which addresses it may have.
pub(super) struct Claimant<'a> {
    pub(super) service: &'a Service,
    /// Namespace and name of the Service.
    pub(super) subject: (&'a str, &'a str),
    pub(super) external: &'a ExternalSettings,
    pub(super) namespace: &'a LazyNamespace<'a>,
    pub(super) cluster: &'a dyn Cluster,
    /// The holders of addresses, if the host knows them.
    pub(super) host: Option<&'a HolderOf<'a>>,
    /// The holders of addresses in canonical form, otherwise: the Services are listed once, and only if needed.
    pub(super) listed: OnceCell<Labels>,
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
        Ok(match self.other_holder(address)? {
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

    /// The other Service that has `address`; `None` if there is none.
    pub(super) fn other_holder(&self, address: IpAddr) -> Result<Option<String>, LookupError> {
        let (namespace, name) = self.subject;
        let is_other = |by: &String| {
            let service = by.split(' ').next().and_then(|service| service.split_once('/'));
            // Services whose names are not generated yet differ only by the record that an earlier review wrote.
            service != Some((namespace, name)) || name.is_empty() && !recorded(self.service).contains(&address)
        };
        let holder = match (self.host, self.listed.get()) {
            (Some(holder_of), _) => holder_of(address),
            (None, Some(listed)) => listed.get(&address.to_string()).cloned(),
            (None, None) => {
                let listed = self.list()?;
                self.listed.get_or_init(|| listed).get(&address.to_string()).cloned()
            }
        };
        Ok(holder.filter(is_other))
    }

    /// The addresses of the pools that other Services have.
    fn list(&self) -> Result<Labels, LookupError> {
        let mut listed = Labels::new();
        self.cluster.external_addresses(&mut |namespace, name, address| {
            if (namespace, name) == self.subject || self.external.pool_of(address).is_none() {
                return;
            }
            let by = format!("{namespace}/{name}");
            let holder = listed.entry(address.to_string()).or_default();
            // The first holder by name counts, so that the order of the list does not matter.
            if holder.is_empty() || by < *holder {
                *holder = by;
            }
        })?;
        Ok(listed)
    }
}
