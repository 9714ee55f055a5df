//! Answers the policy's look-ups from the watched stores and the ledger. The only call to the API server is the claim
//! of an address that was found free, and only with several replicas.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clusterip_core::label_selector::Labels;
use clusterip_core::settings::Settings;
use clusterip_leases::owner::Owner;
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
    /// Look-ups for a Service with this selector. A dry run sees the reservations and makes none.
    pub fn new(stores: &Stores, ledger: &Ledger, claims: Option<&Claims>, subject: &Subject, selector: Labels) -> Self {
        let snapshot = Arc::clone(stores.snapshot());
        let calls = SnapshotCalls::new(Arc::clone(&snapshot)).for_selector(selector);
        let (ledger, claims, subject) = (ledger.clone(), claims.cloned(), subject.clone());
        Self { snapshot, calls, ledger, claims, subject, reserved: Mutex::default(), failed_claim: Mutex::default() }
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
        if self.subject.dry_run {
            return Ok(self.ledger.is_free(address, is_used));
        }
        if !self.ledger.reserve(address, &self.subject.owner, is_used) {
            return Ok(false);
        }
        self.claim(address)
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
