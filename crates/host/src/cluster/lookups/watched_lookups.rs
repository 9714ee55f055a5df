//! Answers the policy's look-ups from the watched stores and the ledger. The only call to the API server is the claim
//! of an address that was found free, and only with several replicas.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clusterip_core::prefetched::Prefetched;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use clusterip_leases::owner::Owner;
use serde_json::Value;
use thiserror::Error;

use super::kubewarden_responses;
use super::snapshot::{Snapshot, SnapshotCalls};
use crate::cluster::reservations::ledger::{Ledger, Share, ShareExceeded, Shares};
use crate::cluster::reservations::namespace_share;
use crate::cluster::reservations::replica_claims::{ClaimError, Claims, is_chosen_by_any_replica};
use crate::cluster::watch::stores::Stores;
use crate::policy::host_calls::{HostCall, HostCalls};

/// The Service that a request is evaluated for.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The owner of the addresses that are reserved.
    pub owner: Owner,
    /// Addresses that the Service already has: they don't count as used.
    pub own: Vec<IpAddr>,
    /// Whether the evaluation must not reserve anything.
    pub dry_run: bool,
}

/// The look-ups of one evaluation. When it is dropped, the addresses that it reserved and did not use are released.
pub struct WatchedLookups {
    snapshot: Arc<RwLock<Snapshot>>,
    calls: SnapshotCalls,
    ledger: Ledger,
    claims: Option<Claims>,
    subject: Subject,
    /// The addresses that the settings keep for the Service.
    kept: Vec<IpAddr>,
    /// The addresses that this evaluation has reserved.
    reserved: Mutex<Vec<IpAddr>>,
    /// Why the claim of an address failed.
    failed_claim: Mutex<Option<ClaimError>>,
}

/// Why an external address can't be reserved.
#[derive(Clone, Debug, Error)]
pub enum ReserveError {
    /// The namespace has too many external addresses in flight.
    #[error(transparent)]
    ShareExceeded(#[from] ShareExceeded),
    /// The address can't be claimed towards other replicas.
    #[error(transparent)]
    NotClaimed(#[from] ClaimError),
}

impl WatchedLookups {
    /// Look-ups for a Service or Node. A dry run sees the reservations and makes none.
    pub fn new(stores: &Stores, ledger: &Ledger, claims: Option<&Claims>, subject: &Subject, object: &Value) -> Self {
        let snapshot = Arc::clone(stores.snapshot());
        let calls = SnapshotCalls::new(Arc::clone(&snapshot)).for_object(object);
        Self {
            snapshot,
            calls,
            ledger: ledger.clone(),
            claims: claims.cloned(),
            subject: subject.clone(),
            kept: Vec::new(),
            reserved: Mutex::default(),
            failed_claim: Mutex::default(),
        }
    }

    /// Look-ups for a Service under `settings`, which may keep addresses for it. The Service gets such an address also
    /// while the address is reserved for the Service itself: a create that fails after the review leaves its
    /// reservation behind. No other Service gets the address meanwhile.
    #[must_use]
    pub fn under(mut self, settings: &Settings) -> Self {
        let (namespace, name) = self.subject.owner.id();
        self.calls = self.calls.clone().prefetching(settings, &ServiceKey::new(namespace, name));
        let reservations = settings.pools.iter().flat_map(|pool| &pool.reservations);
        let own = reservations.filter(|reservation| reservation.is_for(namespace, name));
        self.kept = own.map(|reservation| reservation.address).collect();
        self
    }

    /// Ends the evaluation. Of the addresses that it reserved, those in `used` stay reserved. A namespace that now has
    /// more than its share of a pool of `settings` loses its oldest reservations.
    pub fn commit(&self, used: &[IpAddr], settings: &Settings) {
        self.end(used, &|address| namespace_share::of(settings, address));
    }

    /// Ends the evaluation and releases everything that it reserved.
    pub fn release(&self) {
        // No address is used, so the share is not consulted.
        self.end(&[], &|_| Share { max: usize::MAX, burst: usize::MAX, counts: Box::new(|_| false) });
    }

    fn end(&self, used: &[IpAddr], shares: Shares<'_>) {
        let reserved = std::mem::take(&mut *self.reserved.lock().unwrap_or_else(PoisonError::into_inner));
        let mut released = self.ledger.commit(&self.subject.owner, &reserved, used, shares);
        if let Some(claims) = &self.claims {
            released.extend(reserved.into_iter().filter(|address| !used.contains(address)));
            claims.release(&released);
        }
    }

    /// Reserves an external address if it is not reserved for another Service. An address that was given to this
    /// Service before is its own.
    ///
    /// # Errors
    /// [`ReserveError`] if the address can't be claimed towards other replicas, or the namespace has too many external
    /// addresses in flight.
    pub fn reserve_external(&self, address: IpAddr, settings: &Settings) -> Result<bool, ReserveError> {
        let service = self.subject.owner.id();
        if is_chosen_by_any_replica(&self.ledger, self.claims.as_ref(), address, service) {
            return Ok(true);
        }
        let shares = |address| namespace_share::of(settings, address);
        if !self.ledger.reserve_external(address, &self.subject.owner, &shares)? {
            return Ok(false);
        }
        Ok(self.claim(address)?)
    }

    /// Claims a reserved address towards other replicas. If another replica was faster or the claim fails, the
    /// reservation is released.
    fn claim(&self, address: IpAddr) -> Result<bool, ClaimError> {
        let claimed = match &self.claims {
            Some(claims) => claims.claim(address, &self.subject.owner),
            None => Ok(true),
        };
        if let Err(error) = &claimed {
            *self.failed_claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        }
        if matches!(claimed, Ok(true)) {
            self.reserved.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        } else {
            self.ledger.release(&[address]);
            if let Some(claims) = &self.claims {
                claims.reserve_again(address);
            }
        }
        claimed
    }

    /// Why the claim of an address failed, if one did.
    pub fn failed_claim(&self) -> Option<ClaimError> {
        self.failed_claim.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_free(&self, address: IpAddr) -> Result<bool, ClaimError> {
        if self.subject.own.contains(&address) {
            return Ok(true);
        }
        let is_used = || Snapshot::read(&self.snapshot).has_ip_address(address);
        let is_kept = self.kept.contains(&address);
        if is_kept && self.ledger.is_reserved_for(address, &self.subject.owner) {
            return Ok(!is_used());
        }
        if self.subject.dry_run {
            return Ok(self.ledger.is_free(address, is_used));
        }
        if !self.ledger.reserve(address, &self.subject.owner, is_used) {
            return Ok(false);
        }
        let is_claimed = self.claim(address)?;
        // The claim of another replica may be one for this Service, which the ledger does not show yet.
        let (namespace, name) = self.subject.owner.id();
        let is_own = |claims: &Claims| claims.is_claimed_for(address, namespace, name);
        Ok(is_claimed || (is_kept && self.claims.as_ref().is_some_and(is_own)))
    }

    fn services(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let reservations = self.ledger.reservations().into_iter().map(|(address, owner)| {
            let (namespace, name) = owner.id();
            kubewarden_responses::in_flight(address, namespace, name)
        });
        self.calls.answer_with(call, &reservations.collect::<Vec<_>>())
    }
}

impl Drop for WatchedLookups {
    fn drop(&mut self) {
        self.release();
    }
}

impl HostCalls for WatchedLookups {
    fn services(&self) -> usize {
        self.calls.services() + self.ledger.len()
    }

    fn prefetched(&self) -> Prefetched {
        self.calls.prefetched()
    }

    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        match call {
            HostCall::Get { api_version, kind, name, namespace, disable_cache: true, .. } if kind == "IPAddress" => {
                match name.parse() {
                    Ok(address) => kubewarden_responses::ip_address(
                        api_version,
                        name,
                        namespace.as_deref(),
                        self.is_free(address).map_err(|error| error.to_string())?,
                    ),
                    Err(_) => self.calls.answer(call),
                }
            }
            HostCall::ListAll { api_version, kind, .. } if api_version == "v1" && kind == "Service" => {
                self.services(call)
            }
            _ => self.calls.answer(call),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEPT: &str = "10.0.0.4";

    /// Look-ups for `shop/name` under settings that keep [`KEPT`] for `shop/web`.
    fn lookups(snapshot: &Arc<RwLock<Snapshot>>, ledger: &Ledger, name: &str, dry_run: bool) -> WatchedLookups {
        let settings = Settings::from_value(&json!({"services": {"pools": [{
            "name": "shop", "cidrs": ["10.0.0.0/29"],
            "reservations": [{"address": KEPT, "namespace": "shop", "name": "web"}],
        }]}}));
        let lookups = WatchedLookups {
            snapshot: Arc::clone(snapshot),
            calls: SnapshotCalls::new(Arc::clone(snapshot)),
            ledger: ledger.clone(),
            claims: None,
            subject: Subject { owner: Owner::new("shop", name, "uid"), own: Vec::new(), dry_run },
            kept: Vec::new(),
            reserved: Mutex::default(),
            failed_claim: Mutex::default(),
        };
        lookups.under(&settings.unwrap())
    }

    #[test]
    fn service_gets_its_kept_address_again_after_a_create_that_failed() {
        struct Case {
            name: &'static str,
            address: &'static str,
            before: &'static str,
            after: &'static str,
            is_used: bool,
            expected: bool,
        }
        let cases = [
            Case { name: "a retry", address: KEPT, before: "web", after: "web", is_used: false, expected: true },
            Case { name: "it exists", address: KEPT, before: "web", after: "web", is_used: true, expected: false },
            Case {
                name: "reserved for another Service",
                address: KEPT,
                before: "db",
                after: "web",
                is_used: false,
                expected: false,
            },
            Case {
                name: "kept for another Service",
                address: KEPT,
                before: "web",
                after: "db",
                is_used: false,
                expected: false,
            },
            Case {
                name: "an address that is not kept",
                address: "10.0.0.2",
                before: "web",
                after: "web",
                is_used: false,
                expected: false,
            },
        ];
        for Case { name, address, before, after, is_used, expected } in cases {
            for dry_run in [false, true] {
                let (snapshot, ledger) = (Arc::default(), Ledger::default());
                let address: IpAddr = address.parse().unwrap();
                let failed = lookups(&snapshot, &ledger, before, false);
                assert!(failed.is_free(address).unwrap(), "{name}");
                let unlimited = |_: IpAddr| Share { max: usize::MAX, burst: usize::MAX, counts: Box::new(|_| true) };
                failed.end(&[address], &unlimited);
                drop(failed);
                if is_used {
                    snapshot.write().unwrap().insert(json!({
                        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "other"},
                        "spec": {"clusterIP": address, "clusterIPs": [address]},
                    }));
                }
                let again = lookups(&snapshot, &ledger, after, dry_run);
                assert_eq!(again.is_free(address).unwrap(), expected, "{name}, dry run: {dry_run}");
                drop(again);
                assert_eq!(ledger.len(), 1, "{name}: the reservation stays");
            }
        }
    }
}
