//! Claims: with several replicas, an address in flight is locked in the cluster, too.
//!
//! The ledger knows what this process has in flight. What others have is told by their claims, a Lease
//! for each address ([`Claim`]): creating it is the lock, and the only call on the way of a request.
//!
//! # Promises
//! - Of two replicas that want one address at the same time, one gets it, whatever either has seen.
//! - Nobody's clock is trusted: a claim counts as abandoned only when this process has seen it unchanged
//!   for its whole duration, on a clock that never jumps. It is taken over with its `resourceVersion`, and
//!   removed with UID and `resourceVersion`: whoever sees an old version changes nothing.
//! - A claim outlives what it was made for by [`GRACE`]: a replica that has not seen the Service yet still
//!   meets the claim.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Error as KubeError};
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::claim_lease::{CLAIM, Claim, LABEL, name};
use super::failure::words;
use super::ledger::{HELD_FOR, Ledger, Owner};
use crate::metrics::{ClaimResult, Metrics};

/// How long a claim lasts: longer than the ledger holds what it was made for, which counts from the end
/// of the evaluation.
const DURATION: Duration = Duration::from_secs(HELD_FOR.as_secs() + 5);
/// How long a claim stays after its Service was seen here. A replica whose watch lags by more must not
/// give the address away: it is one whose watch has failed.
pub const GRACE: Duration = Duration::from_secs(10);
/// How long the API server may take for a claim. The policy is given two seconds in all.
const PATIENCE: Duration = Duration::from_millis(1200);
/// How long it may take to tell what became of one that it did not answer in time.
const LAST_PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked for claims that have ended.
const SWEEP: Duration = Duration::from_secs(1);

/// Which process knows what is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kept {
    /// This one alone: there is one replica
    #[default]
    Memory,
    /// All replicas: each address in flight is a Lease
    Lease,
}

/// A claim that could neither be made nor be refused.
#[derive(Debug, Error)]
#[error("{address} can't be claimed: lease {namespace}/{} can't be {what}: {reason}", name(*.address))]
pub struct ClaimError {
    address: IpAddr,
    namespace: String,
    what: &'static str,
    reason: String,
}

/// Claims addresses. Cheap to clone: all clones keep the same claims.
#[derive(Clone)]
pub struct Claims(Arc<Inner>);

struct Inner {
    leases: Api<Lease>,
    namespace: String,
    me: String,
    ledger: Ledger,
    metrics: Arc<Metrics>,
    runtime: Handle,
    known: Mutex<Known>,
}

/// What is known of claims.
#[derive(Default)]
struct Known {
    mine: HashMap<IpAddr, Mine>,
    others: HashMap<IpAddr, Other>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    uid: String,
    resource_version: String,
}

impl Version {
    fn of(lease: &Lease) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self { uid: text(&lease.metadata.uid), resource_version: text(&lease.metadata.resource_version) }
    }
}

struct Mine {
    version: Version,
    /// Since when the ledger does not hold the address any more.
    idle: Option<Instant>,
}

struct Other {
    version: Version,
    owner: Owner,
    duration: Duration,
    /// Since when it has been seen as it is.
    since: Instant,
}

impl Other {
    /// Whether it may be about to be used.
    fn lives(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) < self.duration
    }
}

impl Claims {
    /// Claims in `namespace`, for the replica `me`. What others claim is noted in `ledger`, as long as
    /// [`Self::run`] runs. Requests are sent by the `runtime` that this is called on.
    pub fn new(client: Client, namespace: &str, me: &str, ledger: Ledger, metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Inner {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            me: me.to_owned(),
            ledger,
            metrics,
            runtime: Handle::current(),
            known: Mutex::default(),
        }))
    }

    /// Claims an address that the ledger holds for `owner`; no if another replica was faster. It blocks
    /// for as long as the API server takes, at most two seconds.
    ///
    /// # Errors
    /// [`ClaimError`] where the API server does not say whether it is claimed: then it is not.
    pub fn claim(&self, address: IpAddr, owner: &Owner) -> Result<bool, ClaimError> {
        // An evaluation may run on a thread of the runtime, too.
        block_in_place(|| self.0.runtime.block_on(self.0.claim(address, owner)))
    }

    /// What the ledger knew of another's claim gave way to a hold that has ended: it knows it again.
    pub fn note_again(&self, address: IpAddr) {
        if let Some(other) = self.0.known().others.get(&address)
            && let lasts = other.duration.saturating_sub(other.since.elapsed())
            && !lasts.is_zero()
        {
            self.0.ledger.note_claimed(address, &other.owner, lasts);
        }
    }

    /// Whether any replica claims an address for the Service of this namespace and name. It blocks as
    /// [`Self::claim`] does: the claim may be so young that only the API server knows of it.
    pub fn is_claimed_for(&self, address: IpAddr, namespace: &str, service: &str) -> bool {
        let asked = async { timeout(PATIENCE, self.0.leases.get_opt(&name(address))).await };
        let failed = match block_in_place(|| self.0.runtime.block_on(asked)) {
            Ok(Ok(lease)) => {
                let claim = lease.as_ref().and_then(Claim::of);
                return claim.is_some_and(|claim| claim.owner.id() == (namespace, service));
            }
            Ok(Err(error)) => words(&error),
            Err(_) => format!("no answer within {PATIENCE:?}"),
        };
        // Then it is an address that somebody chose: kept in the pool of the Service, too.
        tracing::warn!(%address, error = failed, "whose address it is can't be looked up");
        false
    }

    /// Gives up claims of addresses that nobody was told of.
    pub fn release(&self, addresses: &[IpAddr]) {
        let mut known = self.0.known();
        for address in addresses {
            if let Some(mine) = known.mine.remove(address) {
                self.0.runtime.spawn(Arc::clone(&self.0).remove(*address, mine.version, true));
            }
        }
    }

    /// Follows the claims of all replicas, and removes those that have ended: its own, and where it
    /// `leads` those that were left behind.
    pub async fn run(self, leads: impl Fn() -> bool, stop: impl Future<Output = ()>) {
        let config = watcher::Config::default().labels(&format!("{LABEL}={CLAIM}"));
        let mut events = pin!(watcher(self.0.leases.clone(), config).default_backoff());
        let mut sweep = interval(SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listed = HashSet::new();
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => return,
                _ = sweep.tick() => self.0.sweep(leads()),
                event = events.next() => match event {
                    Some(Ok(event)) => self.0.see(event, &mut listed),
                    Some(Err(error)) => tracing::warn!(%error, "watching the claims failed, and is tried again"),
                    None => return,
                },
            }
        }
    }
}

impl Inner {
    fn known(&self) -> MutexGuard<'_, Known> {
        // Every change is a single step: whoever panics leaves nothing half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn claim(&self, address: IpAddr, owner: &Owner) -> Result<bool, ClaimError> {
        let claimed = self.attempt(address, owner).await;
        self.metrics.claim(match claimed {
            Ok(Some(result)) => result,
            Ok(None) => ClaimResult::Taken,
            Err(_) => ClaimResult::Failed,
        });
        claimed.map(|claimed| claimed.is_some())
    }

    async fn attempt(&self, address: IpAddr, owner: &Owner) -> Result<Option<ClaimResult>, ClaimError> {
        let claim = Claim { address, owner: owner.clone(), holder: self.me.clone(), duration: DURATION };
        let mut lease = claim.lease(&self.namespace, Timestamp::now());
        // One of our own that is on its way out, or one that was left behind, is taken over.
        let before = {
            let mut known = self.known();
            match (known.mine.remove(&address), known.others.get(&address)) {
                (Some(mine), _) => Some((mine.version, ClaimResult::Claimed)),
                (None, Some(other)) if other.lives(Instant::now()) => return Ok(None),
                (None, Some(other)) => Some((other.version.clone(), ClaimResult::TakenOver)),
                (None, None) => None,
            }
        };
        let result = before.as_ref().map_or(ClaimResult::Claimed, |(_, result)| *result);
        let was_mine = before.as_ref().filter(|(_, result)| *result == ClaimResult::Claimed);
        let was_mine = was_mine.map(|(version, _)| version.clone());
        let wanted = lease.spec.clone();
        let params = PostParams::default();
        let name = name(address);
        let sent = async {
            match before {
                Some((version, _)) => {
                    lease.metadata.uid = Some(version.uid);
                    lease.metadata.resource_version = Some(version.resource_version);
                    self.leases.replace(&name, &params, &lease).await
                }
                None => self.leases.create(&params, &lease).await,
            }
        };
        let reason = match timeout(PATIENCE, sent).await {
            Ok(Ok(lease)) => return Ok(Some(self.claimed(address, &lease, result))),
            // It exists, or has changed, or has gone: another was faster.
            Ok(Err(KubeError::Api(status))) if matches!(status.code, 404 | 409) => return Ok(None),
            Ok(Err(error)) => words(&error),
            Err(_) => format!("no answer within {PATIENCE:?}"),
        };
        // It may have been carried out all the same.
        let failed = |what, reason| {
            if let Some(version) = was_mine {
                // What was there is still ours to remove.
                self.known().mine.entry(address).or_insert(Mine { version, idle: None });
            }
            ClaimError { address, namespace: self.namespace.clone(), what, reason }
        };
        match timeout(LAST_PATIENCE, self.leases.get_opt(&name)).await {
            Ok(Ok(Some(lease))) if lease.spec == wanted => Ok(Some(self.claimed(address, &lease, result))),
            Ok(Ok(Some(lease))) => {
                self.there(&lease);
                Ok(None)
            }
            Ok(Ok(None)) => Err(failed("written", reason)),
            Ok(Err(error)) => Err(failed("read", words(&error))),
            Err(_) => Err(failed("written", reason)),
        }
    }

    fn claimed(&self, address: IpAddr, lease: &Lease, result: ClaimResult) -> ClaimResult {
        let mut known = self.known();
        known.others.remove(&address);
        known.mine.insert(address, Mine { version: Version::of(lease), idle: None });
        result
    }

    /// Removes a claim of this version. Where the API server does not do so, and it is `mine`, the next
    /// sweep tries again.
    async fn remove(self: Arc<Self>, address: IpAddr, version: Version, mine: bool) {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(version.uid.clone()),
                resource_version: Some(version.resource_version.clone()),
            }),
            ..DeleteParams::default()
        };
        match self.leases.delete(&name(address), &params).await {
            Ok(_) => {}
            // Another has it now, or it is gone.
            Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                tracing::debug!(%address, error = words(&error), "the claim can't be removed, and is tried again");
                if mine {
                    self.known().mine.entry(address).or_insert(Mine { version, idle: Some(Instant::now()) });
                }
            }
        }
    }

    fn sweep(self: &Arc<Self>, leads: bool) {
        let now = Instant::now();
        let mut known = self.known();
        let mut ended = Vec::new();
        for (address, mine) in &mut known.mine {
            if self.ledger.holds(*address) {
                mine.idle = None;
            } else if now.saturating_duration_since(*mine.idle.get_or_insert(now)) >= GRACE {
                ended.push(*address);
            }
        }
        for address in ended {
            if let Some(mine) = known.mine.remove(&address) {
                self.runtime.spawn(Arc::clone(self).remove(address, mine.version, true));
            }
        }
        if !leads {
            return;
        }
        for (address, other) in &mut known.others {
            if now.saturating_duration_since(other.since) >= other.duration + GRACE {
                self.runtime.spawn(Arc::clone(self).remove(*address, other.version.clone(), false));
                // Tried again after as long, if it is still there.
                other.since = now.checked_sub(other.duration).unwrap_or(now);
            }
        }
    }

    fn see(&self, event: Event<Lease>, listed: &mut HashSet<IpAddr>) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(lease) => {
                listed.extend(Claim::of(&lease).map(|claim| claim.address));
                self.there(&lease);
            }
            Event::InitDone => {
                let mut known = self.known();
                known.mine.retain(|address, mine| mine.idle.is_none() || listed.contains(address));
                let gone: Vec<IpAddr> =
                    known.others.keys().filter(|address| !listed.contains(*address)).copied().collect();
                for address in gone {
                    known.others.remove(&address);
                    self.ledger.drop_claimed(address);
                }
            }
            Event::Apply(lease) => self.there(&lease),
            Event::Delete(lease) => self.gone(&lease),
        }
    }

    fn there(&self, lease: &Lease) {
        let Some(claim) = Claim::of(lease) else { return };
        let (address, version) = (claim.address, Version::of(lease));
        let mut known = self.known();
        if claim.holder == self.me {
            // Perhaps of a request that was given up, and carried out all the same.
            let mine = known.mine.entry(address).or_insert(Mine { version: version.clone(), idle: None });
            mine.version = version;
            known.others.remove(&address);
            return;
        }
        known.mine.remove(&address);
        if known.others.get(&address).is_some_and(|other| other.version == version) {
            return;
        }
        self.ledger.note_claimed(address, &claim.owner, claim.duration);
        let (owner, duration) = (claim.owner, claim.duration);
        known.others.insert(address, Other { version, owner, duration, since: Instant::now() });
    }

    fn gone(&self, lease: &Lease) {
        let Some(claim) = Claim::of(lease) else { return };
        let uid = Version::of(lease).uid;
        let mut known = self.known();
        if known.mine.get(&claim.address).is_some_and(|mine| mine.version.uid == uid) {
            known.mine.remove(&claim.address);
        }
        if known.others.get(&claim.address).is_some_and(|other| other.version.uid == uid) {
            known.others.remove(&claim.address);
            self.ledger.drop_claimed(claim.address);
        }
    }
}
