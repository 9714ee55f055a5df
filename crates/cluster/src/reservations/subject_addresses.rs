//! Reserves addresses for the Service of a request, in the ledger. The only call to the API server is the claim of an
//! address that was found free, and only with several replicas.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use clusterip_core::lookups::{LookupError, Reserve};
use clusterip_core::settings::Settings;
use clusterip_failover::claims::Owner;
use thiserror::Error;

use super::ledger::{Ledger, Share, ShareExceeded, Shares};
use super::namespace_share;
use super::replica_claims::{ClaimError, Claims, is_chosen_by_any_replica};
use crate::lookups::snapshot::Snapshot;
use crate::lookups::stored_cluster::Addresses;

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

/// The addresses of one evaluation. When it is dropped, the addresses that it reserved and did not use are released.
pub struct SubjectAddresses {
    snapshot: Arc<RwLock<Snapshot>>,
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

impl SubjectAddresses {
    /// Addresses for a Service under `settings`, which may keep some for it. The Service gets such an address also while
    /// the address is reserved for the Service itself: a create that fails after the review leaves its reservation
    /// behind. No other Service gets the address meanwhile. A dry run sees the reservations and makes none.
    pub fn new(
        snapshot: &Arc<RwLock<Snapshot>>,
        ledger: &Ledger,
        claims: Option<&Claims>,
        subject: &Subject,
        settings: &Settings,
    ) -> Self {
        let (namespace, name) = subject.owner.id();
        let reservations = settings.pools.iter().flat_map(|pool| &pool.reservations);
        let own = reservations.filter(|reservation| reservation.is_for(namespace, name));
        Self {
            snapshot: Arc::clone(snapshot),
            ledger: ledger.clone(),
            claims: claims.cloned(),
            kept: own.map(|reservation| reservation.address).collect(),
            subject: subject.clone(),
            reserved: Mutex::default(),
            failed_claim: Mutex::default(),
        }
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
}

impl Drop for SubjectAddresses {
    fn drop(&mut self) {
        self.release();
    }
}

impl Addresses for SubjectAddresses {
    fn reserve(&self, address: IpAddr) -> Result<Reserve, LookupError> {
        match self.is_free(address) {
            Ok(true) => Ok(Reserve::Reserved),
            Ok(false) => Ok(Reserve::Taken),
            Err(error) => {
                let resource = format!("networking.k8s.io/v1/IPAddress {address}");
                Err(LookupError::Failed { resource, detail: error.to_string() })
            }
        }
    }

    fn in_flight(&self, visit: &mut dyn FnMut(&str, &str, IpAddr)) {
        for (address, owner) in self.ledger.reservations() {
            let (namespace, name) = owner.id();
            visit(namespace, name, address);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    const KEPT: &str = "10.0.0.4";

    /// The addresses for `shop/name` under settings that keep [`KEPT`] for `shop/web`.
    fn addresses(snapshot: &Arc<RwLock<Snapshot>>, ledger: &Ledger, name: &str, dry_run: bool) -> SubjectAddresses {
        let settings = Settings::from_value(&json!({"services": {"pools": [{
            "name": "shop", "cidrs": ["10.0.0.0/29"],
            "reservations": [{"address": KEPT, "namespace": "shop", "name": "web"}],
        }]}}));
        let subject = Subject { owner: Owner::new("shop", name, "uid"), own: Vec::new(), dry_run };
        SubjectAddresses::new(snapshot, ledger, None, &subject, &settings.unwrap())
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
                let failed = addresses(&snapshot, &ledger, before, false);
                assert!(failed.is_free(address).unwrap(), "{name}");
                let unlimited = |_: IpAddr| Share { max: usize::MAX, burst: usize::MAX, counts: Box::new(|_| true) };
                failed.end(&[address], &unlimited);
                drop(failed);
                if is_used {
                    snapshot.write().unwrap().insert(&json!({
                        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "other"},
                        "spec": {"clusterIP": address, "clusterIPs": [address]},
                    }));
                }
                let again = addresses(&snapshot, &ledger, after, dry_run);
                assert_eq!(again.is_free(address).unwrap(), expected, "{name}, dry run: {dry_run}");
                drop(again);
                assert_eq!(ledger.len(), 1, "{name}: the reservation stays");
            }
        }
    }
}
