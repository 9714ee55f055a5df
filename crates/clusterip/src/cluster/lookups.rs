//! The policy's look-ups, answered from the watched stores and the ledger. No call leaves the process, but
//! with several replicas the claim of the address that is found free.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clusterip_core::label_selector::Labels;
use clusterip_core::settings::Settings;

use super::answers;
use super::claims::Claims;
use super::ledger::{Ledger, Owner, Share, Shares};
use super::share;
use super::snapshot::{Snapshot, SnapshotCalls};
use super::stores::Stores;
use crate::policy::host_calls::{HostCall, HostCalls};

/// For whom a request is evaluated.
#[derive(Clone, Debug)]
pub struct Subject {
    /// For whom an address is held.
    pub owner: Owner,
    /// Addresses of its own, which don't count as used.
    pub own: Vec<IpAddr>,
    /// Whether nothing may be held.
    pub dry_run: bool,
}

/// The look-ups of one evaluation. What it holds and does not use is free again when this goes.
pub struct Lookups {
    snapshot: Arc<RwLock<Snapshot>>,
    calls: SnapshotCalls,
    ledger: Ledger,
    claims: Option<Claims>,
    subject: Subject,
    held: Mutex<Vec<IpAddr>>,
}

impl Lookups {
    /// Look-ups for a Service with this selector. A dry run sees what is held, and holds nothing.
    pub fn new(stores: &Stores, ledger: &Ledger, claims: Option<&Claims>, subject: &Subject, selector: Labels) -> Self {
        let snapshot = Arc::clone(stores.snapshot());
        let calls = SnapshotCalls::new(Arc::clone(&snapshot)).for_selector(selector);
        let (ledger, claims, subject) = (ledger.clone(), claims.cloned(), subject.clone());
        Self { snapshot, calls, ledger, claims, subject, held: Mutex::default() }
    }

    /// Ends the evaluation: of what it held, the addresses in `used` stay held. A namespace that now holds more than
    /// its share of a pool of `settings` loses its oldest reservations.
    pub fn settle(&self, used: &[IpAddr], settings: &Settings) {
        self.end(used, &|address| share::of(settings, address));
    }

    /// Ends the evaluation, and lets go of everything that it held.
    pub fn release(&self) {
        // No address is used, so no share is asked for.
        self.end(&[], &|_| Share { most: usize::MAX, counts: Box::new(|_| false) });
    }

    fn end(&self, used: &[IpAddr], shares: Shares<'_>) {
        let held = std::mem::take(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner));
        let mut free = self.ledger.settle(&self.subject.owner, &held, used, shares);
        if let Some(claims) = &self.claims {
            free.extend(held.into_iter().filter(|address| !used.contains(address)));
            claims.release(&free);
        }
    }

    /// Holds an external address, if nobody else does. One that was given to this Service before is its own.
    ///
    /// # Errors
    /// Where the namespace holds its share of the pool already, or other replicas can't be told.
    pub fn hold_external(&self, address: IpAddr, share: &Share<'_>) -> Result<bool, String> {
        let (namespace, name) = self.subject.owner.id();
        let claimed = || self.claims.as_ref().is_some_and(|claims| claims.is_claimed_for(address, namespace, name));
        if self.ledger.is_ours(address, namespace, name) || claimed() {
            return Ok(true);
        }
        let held = self.ledger.external_held(namespace, share);
        if held >= share.most {
            return Err(format!(
                "namespace {namespace} holds {held} external addresses of the pool of {address} for Services that are not \
                 there yet, and one namespace may hold {}; try again in a minute",
                share.most
            ));
        }
        if !self.ledger.hold_external(address, &self.subject.owner) {
            return Ok(false);
        }
        self.claim(address)
    }

    /// Holds an address that the ledger holds where others could take it, too. Where they did, it is let go.
    fn claim(&self, address: IpAddr) -> Result<bool, String> {
        let claimed = match &self.claims {
            Some(claims) => claims.claim(address, &self.subject.owner).map_err(|error| error.to_string()),
            None => Ok(true),
        };
        if claimed == Ok(true) {
            self.held.lock().unwrap_or_else(PoisonError::into_inner).push(address);
        } else {
            self.ledger.release(&[address]);
            if let Some(claims) = &self.claims {
                claims.note_again(address);
            }
        }
        claimed
    }

    fn is_free(&self, address: IpAddr) -> Result<bool, String> {
        if self.subject.own.contains(&address) {
            return Ok(true);
        }
        let is_used = || {
            let snapshot = self.snapshot.read().unwrap_or_else(PoisonError::into_inner);
            snapshot.has_ip_address(address)
        };
        if self.subject.dry_run {
            return Ok(self.ledger.is_free(address, is_used));
        }
        if !self.ledger.hold(address, &self.subject.owner, is_used) {
            return Ok(false);
        }
        self.claim(address)
    }

    fn services(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        let held = self.ledger.held().into_iter().map(|(address, owner)| {
            let (namespace, name) = owner.id();
            answers::in_flight(address, namespace, name)
        });
        self.calls.answer_with(call, &held.collect::<Vec<_>>())
    }
}

impl Drop for Lookups {
    fn drop(&mut self) {
        self.release();
    }
}

impl HostCalls for Lookups {
    fn services(&self) -> usize {
        self.calls.services() + self.ledger.len()
    }

    fn answer(&self, call: &HostCall) -> Result<Vec<u8>, String> {
        match call {
            HostCall::Get { api_version, kind, name, namespace, disable_cache: true, .. } if kind == "IPAddress" => {
                match name.parse() {
                    Ok(address) => answers::ip_address(api_version, name, namespace.as_deref(), self.is_free(address)?),
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
