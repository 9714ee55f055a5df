//! Claims: with several replicas, an address in flight is also locked in the cluster.
//!
//! The ledger knows the addresses that this process has in flight. Those of other replicas are known from their claims,
//! one Lease for each address ([`ReplicaClaim`]). Creating the Lease is the lock, and a request waits for it.
//!
//! # Promises
//! - If two replicas want one address at the same time, exactly one gets it, whatever each of them has seen before.
//! - Clocks of other machines are not trusted: a claim counts as abandoned only after this process has seen it
//!   unchanged for its whole duration, measured on a monotonic clock. It is taken over with its `resourceVersion`, and
//!   removed with UID and `resourceVersion`, so a replica with an old version changes nothing.
//! - The claim of an address in use lasts `GRACE` longer than its reservation: a replica that has not seen the Service
//!   yet still finds the claim.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_core::annotations::LEASE_LABEL;
use clusterip_failover::claims::{CLAIM, Owner, ReplicaClaim};
use clusterip_failover::leases::{Observed, Version};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Event, watcher};
use kube::{Api, Client, Error as KubeError};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::ledger::{Ledger, RESERVATION_TIME};
use crate::api_error::{error_chain, error_message};
use crate::api_requests::answer;
use crate::host_metrics::{ClaimMetrics, ClaimResult};
use crate::lease_writes;
use crate::repeated_failures;
use crate::watch::stores::watch_config;

/// How long a claim lasts: its replica keeps it for the reservation of the ledger, which counts from the end of the
/// evaluation, and for [`GRACE`].
const CLAIM_DURATION: Duration = Duration::from_secs(RESERVATION_TIME.as_secs() + GRACE.as_secs() + MARGIN.as_secs());
/// The claim of a reservation that was renewed this long after the claim is renewed, too.
const MARGIN: Duration = Duration::from_secs(5);
/// How many missing claims of external addresses are tried again at once.
const MAX_RETRIES: usize = 16;
/// How long the claim of an address in use stays after its reservation. Another replica may see the Service later: with
/// objects that no watch can show, a tenant makes it wait 10 s, and then list all Services.
const GRACE: Duration = Duration::from_secs(45);
/// A review must end within nine tenths of the time that the API server waits.
const CLAIM_TIMEOUT: Duration = Duration::from_millis(1200);
/// For reading a claim back if the API server did not answer in time.
const READ_BACK_TIMEOUT: Duration = Duration::from_millis(500);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Where claims are stored (`--claims`), and so which processes know the addresses in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ClaimStore {
    /// Only this process, for a single replica
    #[default]
    Memory,
    /// All replicas: each address in flight is a Lease
    Lease,
}

#[derive(Clone)]
pub struct Claims(Arc<Inner>);

struct Inner {
    leases: Api<Lease>,
    namespace: String,
    me: String,
    ledger: Ledger,
    metrics: ClaimMetrics,
    runtime: Handle,
    /// Every change is a single step, so a panic leaves nothing half done.
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    mine: HashMap<IpAddr, Mine>,
    others: HashMap<IpAddr, Observed<Other>>,
}

#[derive(Clone)]
struct Mine {
    version: Version,
    /// Since when the claim has this version.
    since: Instant,
    /// Since when the address is not reserved any more.
    idle: Option<Instant>,
}

#[derive(PartialEq)]
struct Other {
    version: Version,
    owner: Owner,
    duration: Duration,
}

impl Claims {
    /// Claims in `namespace`, for the replica `me`. The claims of other replicas are recorded in `ledger` as long as
    /// [`Self::run`] runs. Requests are sent on the runtime that this function is called on.
    pub fn new(client: Client, namespace: &str, me: &str, ledger: Ledger, metrics: ClaimMetrics) -> Self {
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

    /// Claims an address that the ledger has reserved for `owner`. Returns false if another replica was faster. Blocks
    /// until the API server has answered, for at most two seconds. After an error, because the API server gave no usable
    /// answer, the address counts as not claimed.
    pub fn claim(&self, address: IpAddr, owner: &Owner) -> Result<bool, String> {
        // An evaluation may also run on a thread of the runtime.
        let claimed = block_in_place(|| self.0.runtime.block_on(self.0.attempt(address, owner)));
        let result = match claimed {
            Ok(Some(result)) => result,
            Ok(None) => ClaimResult::Taken,
            Err(_) => ClaimResult::Failed,
        };
        self.0.metrics.claims.get_or_create(&[("result", result)]).inc();
        claimed.map(|claimed| claimed.is_some())
    }

    /// Records the claim of another replica in the ledger again, after a reservation that had replaced it has ended.
    pub fn reserve_again(&self, address: IpAddr) {
        if let Some(other) = self.0.known.lock().others.get(&address)
            && let remaining = other.value.duration.saturating_sub(other.since.elapsed())
            && !remaining.is_zero()
        {
            self.0.ledger.reserve_claimed(address, &other.value.owner, remaining);
        }
    }

    /// Whether another replica has claimed an address for the Service with this namespace and name. Blocks as
    /// [`Self::claim`] does: the claim may be so recent that only the API server knows it.
    pub(crate) fn is_claimed_for(&self, address: IpAddr, namespace: &str, service: &str) -> bool {
        let asked = async { answer(CLAIM_TIMEOUT, self.0.leases.get_opt(&ReplicaClaim::lease_name(address))).await };
        let found = block_in_place(|| self.0.runtime.block_on(asked)).unwrap_or_else(|error| {
            // The address then counts as chosen by the author; it is also checked against the pool of the Service.
            tracing::warn!(%address, error = error_message(&error), "looking up the owner of the address failed");
            None
        });
        let claim = found.as_ref().and_then(ReplicaClaim::of);
        claim.is_some_and(|it| it.holder != self.0.me && it.owner.id() == (namespace, service))
    }

    /// Gives up the claims of addresses that were not handed out, and that no other request has reserved meanwhile.
    pub fn release(&self, addresses: &[IpAddr]) {
        for address in addresses {
            let mut known = self.0.known.lock();
            // Asked under the lock, so that no other request of this replica claims the address in between.
            if self.0.ledger.is_reserved_here(*address) {
                continue;
            }
            let mine = known.mine.remove(address);
            drop(known);
            match mine {
                Some(mine) => drop(self.0.runtime.spawn(Arc::clone(&self.0).remove(*address, mine.version, true))),
                None => self.reserve_again(*address),
            }
        }
    }

    /// Watches the claims of all replicas until `stop`, and removes those that have ended: this replica's own, and
    /// while it `leads` also those that were left behind. `is_used` tells whether a Service is seen that has an address.
    pub async fn run(self, leads: impl Fn() -> bool, is_used: impl Fn(IpAddr) -> bool, stop: impl Future<Output = ()>) {
        let config = watch_config().labels(&format!("{LEASE_LABEL}={CLAIM}"));
        let mut events = pin!(watcher(self.0.leases.clone(), config).default_backoff());
        let mut sweep = interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listed = HashSet::new();
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => return,
                _ = sweep.tick() => self.0.sweep(leads(), &is_used),
                event = events.next() => match event {
                    Some(Ok(event)) => self.0.handle(event, &mut listed),
                    Some(Err(error)) => {
                        let error = error_chain(&error);
                        if repeated_failures::line(&error).is_some() {
                            tracing::warn!(error, "watching the claims failed, trying again");
                        }
                    }
                    None => return,
                },
            }
        }
    }
}

impl Inner {
    async fn attempt(&self, address: IpAddr, owner: &Owner) -> Result<Option<ClaimResult>, String> {
        let claim = ReplicaClaim { address, owner: owner.clone(), holder: self.me.clone(), duration: CLAIM_DURATION };
        let mut lease = claim.lease(&self.namespace, Timestamp::now());
        // A claim of this replica that is about to be removed, or a claim that was left behind, is taken over.
        let (mine, left_behind) = {
            let mut known = self.known.lock();
            let mine = known.mine.remove(&address);
            let other = known.others.get(&address).filter(|_| mine.is_none());
            if other.is_some_and(|other| !other.is_unchanged_for(other.value.duration, Instant::now())) {
                // Another replica may still be about to use the address.
                return Ok(None);
            }
            (mine, other.map(|other| other.value.version.clone()))
        };
        let result = if left_behind.is_some() { ClaimResult::TakenOver } else { ClaimResult::Claimed };
        if let Some(version) = left_behind.or_else(|| mine.as_ref().map(|mine| mine.version.clone())) {
            version.replace_with(&mut lease);
        }
        let (wanted, name) = (lease.spec.clone(), ReplicaClaim::lease_name(address));
        let reason = match answer(CLAIM_TIMEOUT, lease_writes::write(&self.leases, &lease)).await {
            Ok(lease) => return Ok(Some(self.claimed(address, &lease, result))),
            // The Lease exists, has changed, or is gone: another replica was faster.
            Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) => return Ok(None),
            Err(error) => error_message(&error),
        };
        // The API server may have carried out the request all the same.
        let failed = |request, reason: String| {
            if let Some(mine) = mine {
                // The previous claim still belongs to this replica, which must remove it.
                self.known.lock().mine.entry(address).or_insert(Mine { idle: None, ..mine });
            }
            format!("{address} can't be claimed: Lease {}/{name} can't be {request}: {reason}", self.namespace)
        };
        match timeout(READ_BACK_TIMEOUT, self.leases.get_opt(&name)).await {
            Ok(Ok(Some(lease))) if lease.spec == wanted => Ok(Some(self.claimed(address, &lease, result))),
            Ok(Ok(Some(lease))) => {
                self.note_claim(&lease);
                Ok(None)
            }
            Ok(Ok(None)) | Err(_) => Err(failed("written", reason)),
            Ok(Err(error)) => Err(failed("read", error_message(&error))),
        }
    }

    fn claimed(&self, address: IpAddr, lease: &Lease, result: ClaimResult) -> ClaimResult {
        let mut known = self.known.lock();
        known.others.remove(&address);
        known.mine.insert(address, Mine { version: Version::of(lease), since: Instant::now(), idle: None });
        result
    }

    /// Removes a claim of this version. If that fails and the claim is `mine`, the next sweep tries again.
    async fn remove(self: Arc<Self>, address: IpAddr, version: Version, mine: bool) {
        match lease_writes::delete(&self.leases, &ReplicaClaim::lease_name(address), &version).await {
            Ok(()) => {}
            // Another replica has the claim now, or it is gone.
            Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                tracing::debug!(%address, error = error_message(&error), "removing the claim failed, trying again");
                if mine {
                    let since = Instant::now();
                    self.known.lock().mine.entry(address).or_insert(Mine { version, since, idle: Some(since) });
                }
            }
        }
    }

    fn sweep(self: &Arc<Self>, leads: bool, is_used: &dyn Fn(IpAddr) -> bool) {
        let now = Instant::now();
        let mut idle = Vec::new();
        for (address, mine) in &mut self.known.lock().mine {
            if self.ledger.is_reserved_here(*address) {
                mine.idle = None;
            } else {
                idle.push((*address, now.saturating_duration_since(*mine.idle.get_or_insert(now))));
            }
        }
        // The others may give away an address that is free again: otherwise a tenant who creates and deletes Services
        // would fill their pool. Reviews wait for the claims, so the cluster is asked without their lock.
        idle.retain(|(address, since)| *since >= GRACE || !is_used(*address));
        let ended: Vec<IpAddr> = idle.into_iter().map(|(address, _)| address).collect();
        Claims(Arc::clone(self)).release(&ended);
        self.claim_again(now);
        if !leads {
            return;
        }
        for (address, other) in &mut self.known.lock().others {
            if other.is_unchanged_for(other.value.duration + GRACE, now) {
                self.runtime.spawn(Arc::clone(self).remove(*address, other.value.version.clone(), false));
                // If the claim is still there, it is tried again after the grace period.
                other.restart(other.value.duration, now);
            }
        }
    }

    fn handle(self: &Arc<Self>, event: Event<Lease>, listed: &mut HashSet<IpAddr>) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(lease) => {
                listed.extend(ReplicaClaim::of(&lease).map(|claim| claim.address));
                self.note_claim(&lease);
            }
            Event::InitDone => {
                let mut known = self.known.lock();
                known.mine.retain(|address, mine| mine.idle.is_none() || listed.contains(address));
                let gone = known.others.extract_if(|address, _| !listed.contains(address));
                gone.for_each(|(address, _)| self.given_up(address));
            }
            Event::Apply(lease) => self.note_claim(&lease),
            Event::Delete(lease) => self.forget_claim(&lease),
        }
    }

    fn note_claim(&self, lease: &Lease) {
        let Some(claim) = ReplicaClaim::of(lease) else { return };
        let (address, version) = (claim.address, Version::of(lease));
        let mut known = self.known.lock();
        if claim.holder == self.me {
            // The claim may come from a request that timed out here but was carried out all the same.
            let new = Mine { version, since: Instant::now(), idle: None };
            let mine = known.mine.entry(address).or_insert_with(|| new.clone());
            if mine.version != new.version {
                *mine = Mine { idle: mine.idle, ..new };
            }
            known.others.remove(&address);
            return;
        }
        known.mine.remove(&address);
        if known.others.get(&address).is_some_and(|other| other.value.version == version) {
            return;
        }
        self.ledger.reserve_claimed(address, &claim.owner, claim.duration);
        let (owner, duration) = (claim.owner, claim.duration);
        known.others.insert(address, Observed::first(Other { version, owner, duration }, Instant::now()));
    }

    fn forget_claim(self: &Arc<Self>, lease: &Lease) {
        let Some(claim) = ReplicaClaim::of(lease) else { return };
        let uid = Version::of(lease).uid;
        let mut known = self.known.lock();
        if known.mine.get(&claim.address).is_some_and(|mine| mine.version.uid == uid) {
            known.mine.remove(&claim.address);
        }
        if known.others.get(&claim.address).is_some_and(|other| other.value.version.uid == uid) {
            known.others.remove(&claim.address);
            self.given_up(claim.address);
        }
    }

    /// Another replica has given up its claim. This replica claims an address that it has given to the same Service, or to
    /// a later one of the same name, while the claim was there.
    fn given_up(self: &Arc<Self>, address: IpAddr) {
        self.ledger.release_claimed(address);
        if let Some(owner) = self.ledger.owner(address) {
            self.spawn_attempt(address, owner);
        }
    }

    /// Claims the external addresses that this replica has given and that no valid claim protects, because an attempt
    /// failed, and those whose reservation was renewed after the claim, the oldest claims first.
    fn claim_again(self: &Arc<Self>, now: Instant) {
        let mut given = self.ledger.given_external();
        let Known { mine, others } = &*self.known.lock();
        given.retain(|(address, _, since)| match (mine.get(address), others.get(address)) {
            (Some(mine), _) => mine.since + MARGIN < Instant::from_std(*since),
            (None, Some(other)) => other.is_unchanged_for(other.value.duration, now),
            (None, None) => true,
        });
        given.sort_by_key(|(address, ..)| mine.get(address).map(|mine| mine.since));
        given.into_iter().take(MAX_RETRIES).for_each(|(address, owner, _)| self.spawn_attempt(address, owner));
    }

    fn spawn_attempt(self: &Arc<Self>, address: IpAddr, owner: Owner) {
        let this = Arc::clone(self);
        self.runtime.spawn(async move { this.attempt(address, &owner).await });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;

    use axum::http::{Method, Request, Response};
    use clusterip_core::settings::Settings;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::time::sleep;
    use tower::service_fn;

    use super::*;
    use crate::lookups::stored_cluster::{StoredCluster, Subject};
    use crate::reservations::ledger::NamespaceShare;

    /// The Lease that the API server has, if any.
    type Stored = Arc<Mutex<Option<Value>>>;

    fn client(stored: &Stored) -> Client {
        let stored = Arc::clone(stored);
        let answer = service_fn(move |request: Request<Body>| {
            let stored = Arc::clone(&stored);
            async move {
                let method = request.method().clone();
                let sent = request.into_body().collect_bytes().await.unwrap();
                let mut sent: Value = serde_json::from_slice(&sent).unwrap_or_default();
                let mut stored = stored.lock();
                let version = |lease: &Value| lease["metadata"]["resourceVersion"].as_str().map(str::to_owned);
                let code = match (&method, &*stored) {
                    (&Method::POST, Some(_)) => 409,
                    (&Method::PUT, Some(old)) if version(old) != version(&sent) => 409,
                    (&Method::POST, None) | (_, Some(_)) => 200,
                    _ => 404,
                };
                if code == 200 && (method == Method::POST || method == Method::PUT) {
                    sent["metadata"]["uid"] = "1".into();
                    let next = version(&sent).map_or(1, |old| old.parse::<u64>().unwrap() + 1);
                    sent["metadata"]["resourceVersion"] = next.to_string().into();
                    *stored = Some(sent);
                }
                let refusal = json!({"kind": "Status", "metadata": {}, "code": code, "message": "", "reason": ""});
                let body = stored.clone().filter(|_| code == 200).unwrap_or(refusal);
                if method == Method::DELETE {
                    *stored = None;
                }
                let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(answer.unwrap())
            }
        });
        Client::new(answer, "default")
    }

    fn replica(stored: &Stored) -> (Claims, Ledger) {
        let ledger = Ledger::default();
        (Claims::new(client(stored), "server", "me", ledger.clone(), ClaimMetrics::default()), ledger)
    }

    fn external() -> IpAddr {
        IpAddr::from([10, 9, 0, 5])
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn external_address_of_a_service_that_is_created_again_is_reserved() {
        #[derive(Clone, Copy, PartialEq, Eq)]
        enum Before {
            Nothing,
            OwnClaim,
            ClaimOfAnother,
            /// The watch has shown it.
            KnownClaimOfAnother,
        }
        let settings = json!({"external": {"pools": [{"name": "edge", "cidrs": ["10.9.0.0/28"]}]}});
        let settings = Settings::from_value(&settings).unwrap();
        let web = Owner::new("mallory", "web", "");
        for (name, before) in [
            ("no claim", Before::Nothing),
            ("the claim of this replica, which has seen the earlier Service", Before::OwnClaim),
            ("the claim of another replica", Before::ClaimOfAnother),
            ("the known claim of another replica", Before::KnownClaimOfAnother),
        ] {
            let stored = Stored::default();
            let (claims, ledger) = replica(&stored);
            let (holder, duration) = ("other".to_owned(), CLAIM_DURATION);
            let of_other = ReplicaClaim { address: external(), owner: web.clone(), holder, duration };
            let mut of_other = of_other.lease("server", Timestamp::UNIX_EPOCH);
            (of_other.metadata.uid, of_other.metadata.resource_version) = (Some("1".to_owned()), Some("1".to_owned()));
            match before {
                Before::Nothing => {}
                Before::OwnClaim => assert_eq!(claims.claim(external(), &web), Ok(true)),
                _ => *stored.lock() = serde_json::to_value(&of_other).ok(),
            }
            if before == Before::KnownClaimOfAnother {
                claims.0.note_claim(&of_other);
            }
            let subject = Subject { owner: web.clone(), own: Vec::new(), dry_run: false };
            let cluster = StoredCluster::reserving(&Arc::default(), subject, &settings, &ledger, Some(&claims));
            assert_eq!(cluster.reserve_external(external(), false, &settings), Ok(true), "{name}");
            cluster.commit(&[external()], &settings);
            assert!(ledger.is_reserved_here(external()), "{name}");

            // The other replica gives its claim up.
            if before == Before::ClaimOfAnother || before == Before::KnownClaimOfAnother {
                claims.0.note_claim(&of_other);
                *stored.lock() = None;
                claims.0.forget_claim(&of_other);
            }
            let is_mine = || stored.lock().as_ref().is_some_and(|it| it["spec"]["holderIdentity"] == "me");
            for _ in 0..1000 {
                if !is_mine() {
                    sleep(Duration::from_millis(5)).await;
                }
            }
            assert!(is_mine(), "{name}");
            assert!(ledger.is_reserved_here(external()), "{name}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn claim_lasts_as_long_as_another_replica_may_not_have_seen_its_service() {
        struct Case {
            name: &'static str,
            reserved: bool,
            used: bool,
            idle: Duration,
            stays: bool,
        }
        let seconds = Duration::from_secs;
        let cases = [
            Case { name: "in flight", reserved: true, used: false, idle: seconds(0), stays: true },
            Case { name: "its Service was just seen", reserved: false, used: true, idle: seconds(0), stays: true },
            Case { name: "its Service was seen", reserved: false, used: true, idle: seconds(44), stays: true },
            Case { name: "all have seen its Service", reserved: false, used: true, idle: seconds(45), stays: false },
            Case { name: "its Service is gone", reserved: false, used: false, idle: seconds(0), stays: false },
        ];
        for Case { name, reserved, used, idle, stays } in cases {
            let (claims, ledger) = replica(&Stored::default());
            let web = Owner::new("shop", "web", "");
            assert!(!reserved || ledger.reserve(external(), &web, || false));
            assert_eq!(claims.claim(external(), &web), Ok(true));
            claims.0.known.lock().mine.get_mut(&external()).unwrap().idle = Instant::now().checked_sub(idle);
            claims.0.sweep(false, &|_| used);
            assert_eq!(claims.0.known.lock().mine.contains_key(&external()), stays, "{name}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn claim_of_a_given_external_address_is_made_again_until_it_lasts_longer_than_the_reservation() {
        #[derive(PartialEq)]
        enum Claim {
            Missing,
            Old,
            New,
            OfAnother,
        }
        let share = |_| NamespaceShare { max: 9, burst: 9, counts: Box::new(|_| true) };
        for (name, claim, is_given, expected) in [
            ("an attempt failed", Claim::Missing, true, Some("1")),
            ("not given yet", Claim::Missing, false, None),
            ("renewed long after its claim", Claim::Old, true, Some("2")),
            ("given just after its claim", Claim::New, true, Some("1")),
            ("another replica still has a claim for the Service", Claim::OfAnother, true, None),
        ] {
            let stored = Stored::default();
            let (claims, ledger) = replica(&stored);
            let web = Owner::new("shop", "web", "");
            match claim {
                Claim::Missing => {}
                Claim::Old | Claim::New => assert_eq!(claims.claim(external(), &web), Ok(true)),
                Claim::OfAnother => {
                    let (holder, duration) = ("other".to_owned(), CLAIM_DURATION);
                    let other = ReplicaClaim { address: external(), owner: web.clone(), holder, duration };
                    claims.0.note_claim(&other.lease("server", Timestamp::UNIX_EPOCH));
                    ledger.release_claimed(external());
                }
            }
            if claim == Claim::Old {
                let before = Instant::now().checked_sub(MARGIN + Duration::from_secs(1)).unwrap();
                claims.0.known.lock().mine.get_mut(&external()).unwrap().since = before;
            }
            assert_eq!(ledger.reserve_external(external(), &web, &share(external()), |_| false), Ok(true), "{name}");
            if is_given {
                ledger.commit(&web, &[external()], &[external()], &share);
            }
            claims.0.sweep(false, &|_| false);
            let version = || stored.lock().as_ref().map(|it| it["metadata"]["resourceVersion"].clone());
            for _ in 0..1000 {
                if version() != expected.map(Value::from) {
                    sleep(Duration::from_millis(5)).await;
                }
            }
            sleep(Duration::from_millis(50)).await;
            assert_eq!(version(), expected.map(Value::from), "{name}");
        }
    }
}
