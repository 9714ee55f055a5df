//! Which external addresses a Service may have: which pool admits it, and which Service has which address, as the host
//! sent it or as it was looked up.

use std::cell::OnceCell;
use std::net::IpAddr;

use serde_json::Value;

use crate::address::{Family, parse_address};
use crate::json::{Located, TypeMismatch};
use crate::label_selector::Labels;
use crate::lookups::{Cluster, LazyNamespace, LookupError};
use crate::services::{Service, first_mismatch};
use crate::settings::{ExternalPool, ExternalSettings};

/// The answer of a host that assigns external addresses: the holder of an address of a pool, as `namespace/name`; `None`
/// if the address is free. If an address has several holders, the first one counts.
///
/// The host must know each address of the external pools that a Service has or claims, see [`super::stored::in_use`],
/// and each address in flight. It remembers the addresses that it gets back.
pub type HolderOf<'a> = dyn Fn(IpAddr) -> Option<String> + 'a;

/// All external addresses in use, each with its holder as `namespace/name`: as the host sent them with a request, or as
/// they were looked up. An address that is missing here counts as free.
#[derive(Default)]
pub(crate) struct Held {
    /// The holder of each address. The keys are addresses in canonical form.
    by: Labels,
}

impl Held {
    /// Reads `{"held": [{"address": …, "by": …}]}`; `None` for `null`.
    pub(crate) fn read(value: &Value) -> Result<Option<Self>, TypeMismatch> {
        if value.is_null() {
            return Ok(None);
        }
        let mut held = Self::default();
        if let Some(list) = Located::new(value, "external").get("held")? {
            for item in list.items()? {
                let address = item.get("address")?.ok_or_else(|| item.mismatch("an address and its holder"))?;
                let Some(by) = item.text_of("by")? else {
                    return Err(item.mismatch("an address and its holder"));
                };
                let address = parse_address(address.text()?).ok_or_else(|| address.mismatch("an address"))?;
                held.by.entry(address.to_string()).or_insert_with(|| by.to_owned());
            }
        }
        Ok(Some(held))
    }

    /// The holder of an address.
    pub(crate) fn holder(&self, address: IpAddr) -> Option<String> {
        self.by.get(&address.to_string()).cloned()
    }
}

/// The other holders of addresses: as the host says, otherwise from the list of Services, which is looked up once and
/// only if needed.
pub(super) struct Holders<'a> {
    pub(super) host: Option<&'a HolderOf<'a>>,
    pub(super) external: &'a ExternalSettings,
    pub(super) cluster: &'a dyn Cluster,
    /// Namespace and name of the Service that requests addresses.
    pub(super) subject: (&'a str, &'a str),
    pub(super) listed: OnceCell<Held>,
}

impl Holders<'_> {
    /// The other Service that has `address`; `None` if there is none.
    pub(super) fn other(&self, address: IpAddr) -> Result<Option<String>, LookupError> {
        let (namespace, name) = self.subject;
        let is_other = |by: &String| by.split_once('/') != Some((namespace, name)) || name.is_empty();
        let holder = match (self.host, self.listed.get()) {
            (Some(holder_of), _) => holder_of(address),
            (None, Some(held)) => held.holder(address),
            (None, None) => {
                let held = self.list()?;
                self.listed.get_or_init(|| held).holder(address)
            }
        };
        Ok(holder.filter(is_other))
    }

    /// The addresses of the pools that other Services have.
    fn list(&self) -> Result<Held, LookupError> {
        let mut held = Held::default();
        self.cluster.external_addresses(&mut |namespace, name, address| {
            if (namespace, name) == self.subject || self.external.pool_of(address).is_none() {
                return;
            }
            let by = format!("{namespace}/{name}");
            let holder = held.by.entry(address.to_string()).or_default();
            // The first holder by name counts, so that the order of the list does not matter.
            if holder.is_empty() || by < *holder {
                *holder = by;
            }
        })?;
        Ok(held)
    }
}

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
