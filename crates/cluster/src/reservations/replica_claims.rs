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
//! - A replica gives an external address only with a claim of its own, at most `MARGIN` old: all others then see this
//!   claim for longer than the address may be in flight. The claim of another replica serves that one's answers alone.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use clusterip_core::annotations::LEASE_LABEL;
use clusterip_core::service_key::ServiceKey;
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
/// How old a claim may be when its external address is given again.
const MARGIN: Duration = Duration::from_secs(5);
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
    /// Since when the claim has this version; `None` if that is unknown, because the watch has shown it.
    since: Option<Instant>,
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

    /// Claims an address that the ledger has reserved for `owner`. If `may_replace`, the claim of another replica for a
    /// Service of this namespace and name is replaced. Returns false if another replica was faster. Blocks until the API
    /// server has answered, for at most four seconds. After an error, because the API server gave no usable answer, the
    /// address counts as not claimed.
    pub fn claim(&self, address: IpAddr, owner: &Owner, may_replace: bool) -> Result<bool, String> {
        let attempt = || self.0.attempt(address, owner, may_replace);
        let attempts = async {
            match attempt().await {
                // The watch had not shown the claim yet.
                Ok(None) if may_replace => attempt().await,
                result => result,
            }
        };
        // An evaluation may also run on a thread of the runtime.
        let claimed = block_in_place(|| self.0.runtime.block_on(attempts));
        let result = match claimed {
            Ok(Some(result)) => result,
            Ok(None) => ClaimResult::Taken,
            Err(_) => ClaimResult::Failed,
        };
        self.0.metrics.claims.get_or_create(&[("result", result)]).inc();
        claimed.map(|claimed| claimed.is_some())
    }

    /// As [`Self::claim`], unless the claim of this replica outlasts a reservation of the ledger that begins now.
    pub fn renew(&self, address: IpAddr, owner: &Owner, may_replace: bool) -> Result<bool, String> {
        let since = self.0.known.lock().mine.get(&address).and_then(|mine| mine.since);
        let is_young = since.is_some_and(|since| since.elapsed() < MARGIN);
        if is_young { Ok(true) } else { self.claim(address, owner, may_replace) }
    }

    /// Records the claim of another replica in the ledger again, after a reservation that had replaced it has ended.
    pub(crate) fn reserve_again(&self, address: IpAddr) {
        if let Some(other) = self.0.known.lock().others.get(&address)
            && let remaining = other.value.duration.saturating_sub(other.since.elapsed())
            && !remaining.is_zero()
        {
            self.0.ledger.reserve_claimed(address, &other.value.owner, remaining);
        }
    }

    /// Whether another replica has claimed an address for this Service. Blocks as [`Self::claim`] does: the claim may be so
    /// recent that only the API server knows it.
    pub(crate) fn is_claimed_for(&self, address: IpAddr, service: &ServiceKey) -> bool {
        let asked = async { answer(CLAIM_TIMEOUT, self.0.leases.get_opt(&ReplicaClaim::lease_name(address))).await };
        let found = block_in_place(|| self.0.runtime.block_on(asked)).unwrap_or_else(|error| {
            // The address then counts as chosen by the author; it is also checked against the pool of the Service.
            tracing::warn!(%address, error = error_message(&error), "looking up the owner of the address failed");
            None
        });
        let claim = found.as_ref().and_then(ReplicaClaim::of);
        claim.is_some_and(|it| it.holder != self.0.me && it.owner.service == *service)
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
    async fn attempt(&self, address: IpAddr, owner: &Owner, may_replace: bool) -> Result<Option<ClaimResult>, String> {
        let claim = ReplicaClaim { address, owner: owner.clone(), holder: self.me.clone(), duration: CLAIM_DURATION };
        let mut lease = claim.lease(&self.namespace, Timestamp::now());
        // A claim of this replica, one that may be replaced, or a claim that was left behind, is taken over.
        let (mine, other) = {
            let mut known = self.known.lock();
            let mine = known.mine.remove(&address);
            let other = known.others.get(&address).filter(|_| mine.is_none());
            let may_use = |other: &Observed<Other>| {
                other.is_unchanged_for(other.value.duration, Instant::now())
                    || may_replace && other.value.owner.service == owner.service
            };
            if other.is_some_and(|other| !may_use(other)) {
                // Another replica may still be about to use the address.
                return Ok(None);
            }
            (mine, other.map(|other| other.value.version.clone()))
        };
        let is_first = mine.is_none() && other.is_none();
        let result = if other.is_some() { ClaimResult::TakenOver } else { ClaimResult::Claimed };
        if let Some(version) = other.or_else(|| mine.as_ref().map(|mine| mine.version.clone())) {
            version.replace_with(&mut lease);
        }
        let (wanted, name) = (lease.spec.clone(), ReplicaClaim::lease_name(address));
        let reason = match answer(CLAIM_TIMEOUT, lease_writes::write(&self.leases, &lease)).await {
            Ok(lease) => return Ok(Some(self.claimed(address, &lease, is_first, result))),
            // The Lease exists, has changed, or is gone: another replica was faster.
            Err(KubeError::Api(status)) if matches!(status.code, 404 | 409) => None,
            Err(error) => Some(error_message(&error)),
        };
        // The API server may have carried out the request all the same.
        let failed = |request, reason: String| {
            if let Some(mine) = mine {
                // The previous claim still belongs to this replica, which must remove it.
                self.known.lock().mine.entry(address).or_insert(Mine { idle: None, ..mine });
            }
            format!("{address} can't be claimed: Lease {}/{name} can't be {request}: {reason}", self.namespace)
        };
        match (timeout(READ_BACK_TIMEOUT, self.leases.get_opt(&name)).await, reason) {
            (Ok(Ok(Some(lease))), _) if lease.spec == wanted => {
                Ok(Some(self.claimed(address, &lease, is_first, result)))
            }
            (Ok(Ok(Some(lease))), _) => {
                self.note_claim(&lease);
                Ok(None)
            }
            (_, None) => Ok(None),
            (Ok(Err(error)), _) => Err(failed("read", error_message(&error))),
            (_, Some(reason)) => Err(failed("written", reason)),
        }
    }

    fn claimed(&self, address: IpAddr, lease: &Lease, is_first: bool, result: ClaimResult) -> ClaimResult {
        let mut known = self.known.lock();
        known.others.remove(&address);
        known.mine.insert(address, Mine { version: Version::of(lease), since: Some(Instant::now()), idle: None });
        if !is_first {
            // The earlier claim may have been for an answer that is in progress, or whose Service some replica has not seen
            // yet. So this claim stays, also if the evaluation does not use the address.
            self.ledger.keep_external(address);
        }
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
                    let idle = Some(Instant::now());
                    self.known.lock().mine.entry(address).or_insert(Mine { version, since: None, idle });
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
                gone.for_each(|(address, _)| self.ledger.release_claimed(address));
            }
            Event::Apply(lease) => self.note_claim(&lease),
            Event::Delete(lease) => self.forget_claim(&lease),
        }
    }

    fn note_claim(&self, lease: &Lease) {
        let Some(claim) = ReplicaClaim::of(lease) else { return };
        let (address, version) = (claim.address, Version::of(lease));
        let mut known = self.known.lock();
        let mine = known.mine.get(&address).map(|mine| &mine.version);
        let other = known.others.get(&address).map(|other| &other.value.version);
        // The watch may show a claim later than the answer to a request.
        if mine.into_iter().chain(other).any(|seen| version.is_known_beside(seen)) {
            return;
        }
        let mine = known.mine.remove(&address);
        if claim.holder == self.me {
            // The claim may come from a request that timed out here but was carried out all the same.
            known.mine.insert(address, Mine { version, since: None, idle: mine.and_then(|mine| mine.idle) });
            known.others.remove(&address);
            return;
        }
        self.ledger.reserve_claimed(address, &claim.owner, claim.duration);
        let (owner, duration) = (claim.owner, claim.duration);
        known.others.insert(address, Observed::first(Other { version, owner, duration }, Instant::now()));
    }

    fn forget_claim(&self, lease: &Lease) {
        let Some(claim) = ReplicaClaim::of(lease) else { return };
        let uid = Version::of(lease).uid;
        let mut known = self.known.lock();
        if known.mine.get(&claim.address).is_some_and(|mine| mine.version.uid == uid) {
            known.mine.remove(&claim.address);
        }
        if known.others.get(&claim.address).is_some_and(|other| other.value.version.uid == uid) {
            known.others.remove(&claim.address);
            self.ledger.release_claimed(claim.address);
        }
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
    use tower::service_fn;

    use super::*;
    use crate::lookups::stored_cluster::{StoredCluster, Subject};

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
    async fn external_address_is_given_only_with_a_young_claim_of_this_replica() {
        struct Case {
            name: &'static str,
            /// How many seconds ago this replica has claimed the address and given it to `web`.
            given: Option<u64>,
            /// The Service for which another replica has claimed the address since then, and whether the watch has shown it.
            other: Option<(&'static str, bool)>,
            /// The version of the claim with which this replica gives the address to `web`; `None` if it does not.
            expected: Option<&'static str>,
        }
        let cases = [
            Case { name: "no claim", given: None, other: None, expected: Some("1") },
            Case { name: "given just now", given: Some(0), other: None, expected: Some("1") },
            Case { name: "given a while ago", given: Some(6), other: None, expected: Some("2") },
            Case { name: "claimed by another", given: None, other: Some(("web", true)), expected: Some("2") },
            Case { name: "claimed just now", given: None, other: Some(("web", false)), expected: Some("2") },
            Case { name: "given by both", given: Some(0), other: Some(("web", true)), expected: Some("3") },
            Case { name: "of another Service", given: None, other: Some(("db", true)), expected: None },
            Case { name: "of another Service, just now", given: None, other: Some(("db", false)), expected: None },
            Case { name: "lost to another Service", given: Some(0), other: Some(("db", true)), expected: None },
        ];
        let settings = json!({"external": {"pools": [{"name": "edge", "cidrs": ["10.9.0.0/28"]}]}});
        let settings = Settings::from_value(&settings).unwrap();
        for Case { name, given, other, expected } in cases {
            let stored = Stored::default();
            let (claims, ledger) = replica(&stored);
            let evaluation = || {
                let subject = Subject { owner: Owner::new("shop", "web", ""), own: Vec::new(), dry_run: false };
                StoredCluster::reserving(&Arc::default(), subject, &settings, &ledger, Some(&claims))
            };
            if let Some(seconds) = given {
                let first = evaluation();
                assert_eq!(first.reserve_external(external(), false, &settings), Ok(true), "{name}");
                first.commit(&[external()], &settings);
                let since = Instant::now().checked_sub(Duration::from_secs(seconds));
                claims.0.known.lock().mine.get_mut(&external()).unwrap().since = since;
            }
            if let Some((service, is_shown)) = other {
                let (owner, holder) = (Owner::new("shop", service, ""), "other".to_owned());
                let claim = ReplicaClaim { address: external(), owner, holder, duration: CLAIM_DURATION };
                let mut lease = claim.lease("server", Timestamp::UNIX_EPOCH);
                let version = if given.is_some() { "2" } else { "1" };
                (lease.metadata.uid, lease.metadata.resource_version) = (Some("1".into()), Some(version.into()));
                *stored.lock() = serde_json::to_value(&lease).ok();
                if is_shown {
                    claims.0.note_claim(&lease);
                }
            }
            let second = evaluation();
            let is_given = second.reserve_external(external(), false, &settings);
            assert_eq!(is_given, Ok(expected.is_some()), "{name}");
            let lease = stored.lock().clone().unwrap();
            let is_mine = lease["spec"]["holderIdentity"] == "me";
            assert_eq!(
                is_mine.then_some(&lease["metadata"]["resourceVersion"]),
                expected.map(Value::from).as_ref(),
                "{name}"
            );
            // The evaluation ends without an answer.
            drop(second);
            claims.0.sweep(false, &|_| false);
            let keeps = given.is_some() || (is_mine && other.is_some());
            assert_eq!(ledger.is_reserved_here(external()), keeps, "{name}: an earlier answer needs the address");
            assert_eq!(claims.0.known.lock().mine.contains_key(&external()), keeps && is_mine, "{name}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn claims_that_the_watch_shows_late_replace_no_newer_one() {
        let stored = Stored::default();
        let (claims, ledger) = replica(&stored);
        let shown = |service: &str, version: &str| {
            let (owner, holder) = (Owner::new("shop", service, ""), "other".to_owned());
            let claim = ReplicaClaim { address: external(), owner, holder, duration: CLAIM_DURATION };
            let mut lease = claim.lease("server", Timestamp::UNIX_EPOCH);
            lease.metadata.resource_version = Some(version.to_owned());
            claims.0.note_claim(&lease);
        };
        let web = Owner::new("shop", "web", "");
        assert_eq!(claims.claim(external(), &web, false), Ok(true));
        shown("old", "0");
        assert_eq!(claims.renew(external(), &web, false), Ok(true), "it still has its claim");
        shown("db", "3");
        shown("old", "2");
        assert_eq!(ledger.owner(external()), Some(Owner::new("shop", "db", "")));
        shown("web", "4");
        assert_eq!(ledger.owner(external()), Some(web));
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
            assert_eq!(claims.claim(external(), &web, false), Ok(true));
            claims.0.known.lock().mine.get_mut(&external()).unwrap().idle = Instant::now().checked_sub(idle);
            claims.0.sweep(false, &|_| used);
            assert_eq!(claims.0.known.lock().mine.contains_key(&external()), stays, "{name}");
        }
    }
}
