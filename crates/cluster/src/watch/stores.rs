//! Watches the objects that decisions are made from, and keeps their current state.
//!
//! There is one watch of the whole cluster for each kind. Only the fields that are used are kept of each object, so a
//! cluster with tens of thousands of objects needs some dozen megabytes. The objects of one namespace may take 16 MiB;
//! what exceeds this is left out. It is added when it changes, or with the next list, as soon as there is room.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime};

use crate::api_error::{error_chain, is_too_slow};
use crate::backoff::{MAX_RETRY_PAUSE, MIN_RETRY_PAUSE, pause_after, retry_backoff, with_jitter};
use crate::list_pages::SMALL_PAGE_OBJECTS;
use crate::repeated_failures;
use crate::send_if_changed::send_if_changed;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::settings::Settings;
use futures::StreamExt;
use kube::api::ApiResource;
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, watch};

use super::control_plane_services::ControlPlaneServices;
use super::partial_object::PartialObject;
use crate::host_metrics::ClusterMetrics;
use crate::kinds::{self, Kind, State, own_name};
use crate::metrics::{timestamp, whole};
use crate::object;
use crate::snapshot::service_ranges::ServiceRanges;
use crate::snapshot::{Insertion, MAX_BYTES, Missing, Snapshot, Stored, StoredService};
use crate::watch::api_server_lists;

/// How many kinds are listed at a time, besides Services: their list must not wait for others, which a tenant can make
/// long, because external addresses are reserved only until it shows their Services.
const LISTS: usize = 2;
/// How long a watch lasts before the API server ends it and it goes on with a new request, from where it was. A watch whose
/// connection is silent is given up 5 s later, so before the reservations end that were made meanwhile: a machine that
/// loses its power ends no connection.
const WATCH_SECONDS: u32 = 50;
/// How long a list blocks other lists at most, so that one that hangs does not stop them.
const MAX_LIST_TIME: Duration = Duration::from_secs(10);
/// How long after a list a kind is listed again because a namespace has room for objects that were left out.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(300);
/// How long a streaming list waits for its next object. An API server that does not know streaming lists never says
/// where one ends.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);
/// How often a kind that the cluster does not have is looked for again.
const ABSENT_PAUSE: Duration = Duration::from_secs(30);
/// How long the start waits for a kind of evidence that can't be listed. Its look-ups fail then.
const LIST_PATIENCE: Duration = Duration::from_secs(10);
/// The first and the longest pause before a kind is listed again because its watch has expired again and again. Moves wait
/// for the lists of the server; of agents there is one on each node.
const EXPIRED_PAUSES: (Duration, Duration) = (MIN_RETRY_PAUSE, Duration::from_secs(2));
const EXPIRED_PAUSES_ON_EACH_NODE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(120));
/// A watch that has lasted this long does not expire again and again.
const QUIET: Duration = Duration::from_secs(300);
/// How old the cached state of a kind may be; then nothing is decided that needs it. The API server refuses a ClusterIP of
/// an unknown Service, so the worst result before is a refused request.
pub const MAX_STALENESS: Duration = Duration::from_secs(300);
/// The same for Services if an external address is given, which the API server accepts for any Service. With the time until
/// a silent watch is given up, it is shorter than a reservation.
pub(crate) const MAX_STALENESS_OF_EXTERNAL: Duration = Duration::from_secs(8);

/// How every watch is made: see `WATCH_SECONDS`.
pub fn watch_config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// A change of an object, in fields that are kept.
#[derive(Clone, Copy, Debug)]
pub struct Change<'c> {
    pub kind: &'c Kind,
    /// Empty if the kind has none.
    pub namespace: &'c str,
    pub name: &'c str,
    /// `None` if the object is new.
    pub before: Option<&'c Stored>,
    /// `None` if the object is deleted or left out.
    pub after: Option<&'c Stored>,
}

/// The watched objects. Clones share the same stores.
#[derive(Clone)]
pub struct Stores(Arc<Inner>);

struct Inner {
    client: Client,
    metrics: ClusterMetrics,
    snapshot: Arc<RwLock<Snapshot>>,
    states: Mutex<BTreeMap<Kind, State>>,
    service_cidrs: watch::Sender<ServiceRanges>,
    subscriptions: Subscriptions,
    control_plane_services: ControlPlaneServices,
    lists: Semaphore,
    lists_services: AtomicBool,
    on_each_node: AtomicBool,
    /// Whether the API server lists objects as events of a watch, as far as it is known.
    streams: AtomicBool,
    /// Whether all kinds were listed at the start.
    begun: AtomicBool,
    /// Is called with every Service and `IPAddress` that is new or has changed.
    seen: Box<dyn Fn(&Value) + Send + Sync>,
    /// Is called with every change after the first list of its kind, or after the start.
    changed: Box<dyn Fn(&Change<'_>) + Send + Sync>,
}

/// The lists of one kind so far: they decide how the next list is requested.
struct Lists {
    /// Whether the first list has begun. Before that, no object of the kind is stored.
    begun: bool,
    complete: bool,
    page_objects: u32,
    /// How long the last complete list took.
    took: Duration,
}

/// How the watch of a kind ended.
enum Ended {
    Absent,
    /// A new list is needed at once.
    ListAgain,
    /// A new list is needed, because the watch can't go on from its version.
    Expired,
    Failed,
}

/// The pause before a kind is listed again whose watch has expired so often in a row, if the last list `took` so long: the
/// lists of an agent take at most a fifth of the time. A server waits five seconds at most for the sake of the API server,
/// because it must see each Service before its reservation ends.
fn pause_after_expiry(expiries: u32, took: Duration, on_each_node: bool) -> Duration {
    let (first, longest) = if on_each_node { EXPIRED_PAUSES_ON_EACH_NODE } else { EXPIRED_PAUSES };
    let of_list = if on_each_node { 4 * took } else { (4 * took).min(MAX_RETRY_PAUSE) };
    pause_after(expiries, first, longest).max(of_list)
}

impl Stores {
    /// Empty stores. `seen` is called with every Service and `IPAddress` that is new or has changed, after the look-ups
    /// include its addresses. `changed` is called with every change after the first list of its kind, and of a kind that
    /// is first listed after the start, with every object. A tenant can cause any number of changes, so they are not
    /// collected here.
    pub fn new(
        client: Client,
        metrics: ClusterMetrics,
        seen: impl Fn(&Value) + Send + Sync + 'static,
        changed: impl Fn(&Change<'_>) + Send + Sync + 'static,
    ) -> Self {
        let inner = Inner {
            client,
            metrics,
            snapshot: Arc::new(RwLock::new(Snapshot::limited_to(MAX_BYTES))),
            states: Mutex::default(),
            service_cidrs: watch::Sender::new(ServiceRanges::default()),
            subscriptions: Subscriptions::default(),
            control_plane_services: ControlPlaneServices::default(),
            lists: Semaphore::new(LISTS),
            lists_services: AtomicBool::new(false),
            on_each_node: AtomicBool::new(false),
            streams: AtomicBool::new(true),
            begun: AtomicBool::new(false),
            seen: Box::new(seen),
            changed: Box::new(changed),
        };
        Self(Arc::new(inner))
    }

    /// Settings are checked against them, so nothing may start after an error: an edit of a pool that was refused because
    /// of the ranges would come into force, and the last good version would be forgotten.
    pub async fn ask_for_service_cidrs(&self) -> anyhow::Result<()> {
        let found = api_server_lists::service_ranges(&self.0.client).await?;
        self.0.service_cidrs.send_replace(found);
        Ok(())
    }

    /// Starts to watch all kinds that decisions with these settings read and that moves depend on, except those that
    /// are watched already. Returns whether there are new ones: until they are listed, look-ups of them fail.
    pub fn watch(&self, settings: &Settings) -> bool {
        self.watch_kinds(kinds::watched(settings).chain(kinds::callers()))
    }

    /// The Services that the control plane calls. Admission does not need them, so [`Self::complete`],
    /// [`Self::lagging`] and [`Self::states`] don't include their watches.
    pub fn control_plane_services(&self) -> &ControlPlaneServices {
        &self.0.control_plane_services
    }

    /// As [`Self::watch`].
    pub fn watch_kinds(&self, kinds: impl IntoIterator<Item = Kind>) -> bool {
        let mut any = false;
        for kind in kinds {
            if self.0.states_with(&kind).contains_key(&kind) {
                continue;
            }
            self.0.set_unlisted(&kind, "it is being listed");
            self.0.states_with(&kind).insert(kind.clone(), State::Syncing);
            tokio::spawn(Arc::clone(&self.0).follow(kind));
            any = true;
        }
        any
    }

    /// Spares the API server: there is a process like this one on each node.
    pub fn on_each_node(&self) {
        self.0.on_each_node.store(true, Ordering::SeqCst);
    }

    /// Lists a watched kind again, and passes `listener` every event from the beginning of that list: nothing in it is
    /// older than this call.
    pub fn listen(&self, kind: &Kind, listener: Listener) {
        self.0.subscriptions.add(kind, listener);
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    pub(crate) fn metrics(&self) -> &ClusterMetrics {
        &self.0.metrics
    }

    pub fn snapshot(&self) -> &Arc<RwLock<Snapshot>> {
        &self.0.snapshot
    }

    /// Changes of the cluster wait as long as the guard exists.
    pub fn read_snapshot(&self) -> RwLockReadGuard<'_, Snapshot> {
        Snapshot::read(&self.0.snapshot)
    }

    /// It stays the same until the Service changes.
    pub fn stored_service(&self, key: &ServiceKey) -> Option<Arc<StoredService>> {
        self.read_snapshot().service(key).cloned()
    }

    pub fn service(&self, key: &ServiceKey) -> Option<Value> {
        self.stored_service(key).map(|service| service.value())
    }

    /// A list has them in the order of their names, and not in that of their writes.
    pub fn lists_services(&self) -> bool {
        self.0.lists_services.load(Ordering::SeqCst)
    }

    pub fn states(&self) -> MutexGuard<'_, BTreeMap<Kind, State>> {
        self.0.states.lock()
    }

    /// The watches that are not in sync, each with its reason; empty if all are in sync. After the start, a kind of
    /// evidence does not count: the requests that do not need it are decided.
    pub fn lagging(&self) -> Vec<String> {
        let begun = self.begun();
        let lag = |((api_version, kind), state): (&Kind, &State)| match state {
            State::Synced | State::Absent => None,
            State::Syncing => Some(format!("{api_version}/{kind} is being listed")),
            State::Failing { since, reason, .. } => {
                let seconds = since.elapsed().as_secs();
                Some(format!("{api_version}/{kind} could not be watched for {seconds} s: {reason}"))
            }
        };
        self.states().iter().filter(|(kind, _)| !begun || kinds::is_required(kind)).filter_map(lag).collect()
    }

    pub fn update_metrics(&self) {
        let metrics = &self.0.metrics;
        for states in [self.states(), self.0.control_plane_services.states()] {
            for ((_, kind), state) in states.iter() {
                metrics.store_synced(kind, matches!(state, State::Synced | State::Absent));
            }
        }
        metrics.services_left_out.set(whole(self.read_snapshot().services_left_out()));
        let blind = self.stale_since().map(|since| since.elapsed()).unwrap_or_default();
        metrics.last_contact.set(timestamp(SystemTime::now() - blind));
    }

    /// Since when a kind can't be watched that every decision or move needs.
    pub fn stale_since(&self) -> Option<Instant> {
        self.failing_since(kinds::is_required)
    }

    pub(crate) fn services_stale_since(&self) -> Option<Instant> {
        self.failing_since(|kind| own_name(kind) == "Service")
    }

    fn failing_since(&self, is_it: impl Fn(&Kind) -> bool) -> Option<Instant> {
        let since = |(kind, state): (&Kind, &State)| match state {
            State::Failing { since, .. } if is_it(kind) => Some(*since),
            _ => None,
        };
        self.states().iter().filter_map(since).min()
    }

    /// Whether each kind was listed completely at least once, except kinds of evidence that could not be listed for a
    /// while.
    pub fn complete(&self) -> bool {
        self.states().iter().all(|(kind, state)| match state {
            State::Synced | State::Absent => true,
            State::Syncing => false,
            State::Failing { usable: true, .. } => true,
            State::Failing { since, .. } => !kinds::is_required(kind) && since.elapsed() > LIST_PATIENCE,
        })
    }

    /// Whether the objects of this kind are known.
    pub fn is_listed(&self, kind: &Kind) -> bool {
        matches!(
            self.0.states_with(kind).get(kind),
            Some(State::Synced | State::Absent | State::Failing { usable: true, .. })
        )
    }

    /// Whether [`Self::complete`] was true once. A kind that later settings name must not stop the decisions that do not
    /// need it.
    pub fn begun(&self) -> bool {
        let begun = &self.0.begun;
        if !begun.load(Ordering::SeqCst) && self.complete() {
            begun.store(true, Ordering::SeqCst);
        }
        begun.load(Ordering::SeqCst)
    }

    pub async fn completed(&self) {
        while !self.complete() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The primary ones first; empty if the cluster has none.
    pub fn service_cidrs(&self) -> watch::Receiver<ServiceRanges> {
        self.0.service_cidrs.subscribe()
    }
}

impl Inner {
    fn states_with(&self, kind: &Kind) -> MutexGuard<'_, BTreeMap<Kind, State>> {
        if kinds::is_caller(kind) { self.control_plane_services.states() } else { self.states.lock() }
    }

    async fn follow(self: Arc<Self>, kind: Kind) {
        loop {
            match kinds::resource(&self.client, &kind).await {
                Ok(Some(resource)) => self.follow_resource(&kind, resource).await,
                Ok(None) => self.set_absent(&kind),
                Err(error) => self.set_failing(&kind, &error),
            }
            let absent = self.states_with(&kind).get(&kind) == Some(&State::Absent);
            tokio::time::sleep(if absent { ABSENT_PAUSE } else { MAX_RETRY_PAUSE }).await;
        }
    }

    /// Watches a kind until the cluster does not have it any more.
    ///
    /// After a failure the kind is listed again. A watch that continues where it stopped reports nothing until
    /// something changes, so for a kind with few changes the recovery would go unnoticed.
    async fn follow_resource(&self, kind: &Kind, resource: ApiResource) {
        let api: Api<PartialObject> = Api::all_with(self.client.clone(), &resource);
        let mut backoff = retry_backoff();
        let page_objects = kinds::page_objects(kind);
        let mut lists = Lists { begun: false, complete: false, page_objects, took: Duration::ZERO };
        let mut expiries = 0_u32;
        loop {
            let begin = Instant::now();
            match self.follow_once(kind, &api, &mut lists).await {
                Ended::Absent => return,
                Ended::ListAgain => continue,
                Ended::Expired => {
                    // A tenant can cause this again and again, at all processes that watch the kind.
                    expiries = if begin.elapsed() > QUIET { 1 } else { expiries.saturating_add(1) };
                    let on_each_node = self.on_each_node.load(Ordering::SeqCst);
                    tokio::time::sleep(with_jitter(pause_after_expiry(expiries, lists.took, on_each_node))).await;
                    continue;
                }
                Ended::Failed => {}
            }
            if begin.elapsed() > 2 * MAX_RETRY_PAUSE {
                backoff.reset();
            }
            tokio::time::sleep(backoff.next().unwrap_or(MAX_RETRY_PAUSE)).await;
        }
    }

    async fn follow_once(&self, kind: &Kind, api: &Api<PartialObject>, lists: &mut Lists) -> Ended {
        let mut list = if own_name(kind) == "Service" { None } else { self.lists.acquire().await.ok() };
        let config = watch_config().page_size(lists.page_objects);
        let mut stream = self.streams.load(Ordering::SeqCst).then(Stream::default);
        let config = if stream.is_some() { config.streaming_lists() } else { config };
        let begin = tokio::time::Instant::now();
        let mut look_for_room = begin + LIST_AGAIN_AFTER;
        let mut events = pin!(watcher(api.clone(), config));
        let asks = self.subscriptions.asks(kind);
        // The objects that the current list has shown so far; `None` between two lists, and during the first one. At the
        // end of a list, stored objects that it has not shown are forgotten. Before the first list, nothing is stored, and
        // the names of 100,000 Services would need many megabytes.
        let mut listed: Option<BTreeSet<(String, String)>> = None;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = tokio::time::sleep(STREAM_PATIENCE), if stream.as_ref().is_some_and(|stream| stream.begun) => None,
                () = asks.notified() => return Ended::ListAgain,
                () = tokio::time::sleep_until(begin + MAX_LIST_TIME), if list.is_some() => {
                    list = None;
                    continue;
                }
                () = tokio::time::sleep_until(look_for_room) => {
                    look_for_room += LIST_AGAIN_AFTER;
                    if Snapshot::read(&self.snapshot).has_room_for(&kind.0, &kind.1) {
                        return Ended::ListAgain;
                    }
                    continue;
                }
            };
            stream = match stream.map_or(Streamed::Complete, |stream| stream.next(event.as_ref())) {
                Streamed::Complete => None,
                Streamed::Partly(stream) => Some(stream),
                Streamed::Failed(reason) => {
                    tracing::debug!(api_version = kind.0, kind = kind.1, reason, "listed in pages from now on");
                    self.streams.store(false, Ordering::SeqCst);
                    return Ended::ListAgain;
                }
            };
            if let Some(Ok(event)) = &event {
                self.subscriptions.show(kind, event);
            }
            match event {
                Some(Ok(Event::Init)) => {
                    listed = lists.begun.then(BTreeSet::new);
                    lists.begun = true;
                    self.set_listing(kind, true);
                }
                Some(Ok(Event::InitApply(object))) => {
                    let tell = lists.complete || self.begun.load(Ordering::SeqCst);
                    let id = self.apply(kind, object, tell);
                    if let Some(listed) = &mut listed {
                        listed.extend(id);
                    }
                }
                Some(Ok(Event::InitDone)) => {
                    list = None;
                    if let Some(listed) = listed.take() {
                        self.forget_others(kind, &listed);
                    }
                    self.set_listing(kind, false);
                    let page_objects = kinds::page_objects(kind);
                    *lists = Lists { begun: true, complete: true, page_objects, took: begin.elapsed() };
                    if own_name(kind) == "ServiceCIDR" {
                        self.learn_service_cidrs();
                    }
                    self.set_synced(kind);
                }
                Some(Ok(Event::Apply(object))) => {
                    self.apply(kind, object, true);
                    self.set_synced(kind);
                }
                Some(Ok(Event::Delete(object))) => {
                    let namespace = object.metadata.namespace.unwrap_or_default();
                    self.delete(kind, &namespace, &object.metadata.name.unwrap_or_default());
                    self.set_synced(kind);
                }
                Some(Err(
                    watcher::Error::InitialListFailed(kube::Error::Api(status))
                    | watcher::Error::WatchStartFailed(kube::Error::Api(status)),
                )) if status.code == 404 => {
                    self.set_absent(kind);
                    return Ended::Absent;
                }
                // The API server answers, and the objects are listed again: nothing fails. But no Service moves while
                // its callers may have changed.
                Some(Err(watcher::Error::WatchError(status))) if status.code == 410 && !kinds::is_caller(kind) => {
                    self.metrics.watch_error(&kind.1);
                    repeated_failures::warn_of_watch(kind, &status.message);
                    return Ended::Expired;
                }
                Some(Err(error)) => {
                    if let watcher::Error::InitialListFailed(error) = &error
                        && is_too_slow(error)
                    {
                        lists.page_objects = (lists.page_objects / 4).max(SMALL_PAGE_OBJECTS);
                    }
                    self.set_failing(kind, &error);
                    return Ended::Failed;
                }
                None => return Ended::Failed,
            }
        }
    }

    /// Returns the namespace and name of the object; `None` if it has no name.
    fn apply(&self, kind: &Kind, object: PartialObject, tell: bool) -> Option<(String, String)> {
        let object = object.value(kind)?;
        let id = (object::namespace(&object).to_owned(), object::name(&object).to_owned());
        if kinds::is_caller(kind) {
            self.control_plane_services.take(kind, &object);
            return Some(id);
        }
        let (before, after) = match Snapshot::insert_in(&self.snapshot, &object) {
            Insertion::Same => return Some(id),
            Insertion::Changed { before, after } => (before, Some(after)),
            Insertion::LeftOut(before) => {
                self.metrics.left_out(&kind.1);
                (before, None)
            }
        };
        match own_name(kind) {
            "Service" | "IPAddress" => (self.seen)(&object),
            // During a list the ranges are read once, when it is complete.
            "ServiceCIDR" if tell => self.learn_service_cidrs(),
            _ => {}
        }
        if tell && (before.is_some() || after.is_some()) {
            let (before, after) = (before.as_ref(), after.as_ref());
            (self.changed)(&Change { kind, namespace: &id.0, name: &id.1, before, after });
        }
        Some(id)
    }

    fn delete(&self, kind: &Kind, namespace: &str, name: &str) {
        if kinds::is_caller(kind) {
            return self.control_plane_services.retain(kind, |other| other != name);
        }
        let removed = Snapshot::write(&self.snapshot).remove(&kind.0, &kind.1, namespace, name);
        if own_name(kind) == "ServiceCIDR" {
            self.learn_service_cidrs();
        }
        if let Some(removed) = removed {
            (self.changed)(&Change { kind, namespace, name, before: Some(&removed), after: None });
        }
    }

    fn forget_others(&self, kind: &Kind, listed: &BTreeSet<(String, String)>) {
        if kinds::is_caller(kind) {
            let is_listed = |name: &str| listed.contains(&(String::new(), name.to_owned()));
            return self.control_plane_services.retain(kind, is_listed);
        }
        let names = Snapshot::read(&self.snapshot).names(&kind.0, &kind.1);
        for (namespace, name) in names.into_iter().filter(|id| !listed.contains(id)) {
            self.delete(kind, &namespace, &name);
        }
        Snapshot::write(&self.snapshot).keep_left_out(&kind.0, &kind.1, listed);
    }

    fn set_listing(&self, kind: &Kind, listing: bool) {
        if own_name(kind) == "Service" {
            self.lists_services.store(listing, Ordering::SeqCst);
        }
    }

    fn learn_service_cidrs(&self) {
        let found = Snapshot::read(&self.snapshot).service_ranges();
        send_if_changed(&self.service_cidrs, found);
    }

    fn set_synced(&self, kind: &Kind) {
        let mut states = self.states_with(kind);
        if states.get(kind) == Some(&State::Synced) {
            return;
        }
        let before = states.insert(kind.clone(), State::Synced);
        drop(states);
        match before {
            // The first watch that recovers tells it for all that failed for the same reason.
            Some(State::Failing { reason, .. }) if let Some(line) = repeated_failures::end(&reason) => {
                let not_logged = line.not_logged;
                tracing::info!(api_version = kind.0, kind = kind.1, not_logged, "followed again");
            }
            _ => tracing::debug!(api_version = kind.0, kind = kind.1, "listed"),
        }
        Snapshot::write(&self.snapshot).add_api(&kind.0, &kind.1);
    }

    fn set_absent(&self, kind: &Kind) {
        self.forget_others(kind, &BTreeSet::new());
        let before = self.states_with(kind).insert(kind.clone(), State::Absent);
        if before == Some(State::Absent) {
            return;
        }
        tracing::info!(api_version = kind.0, kind = kind.1, "the cluster does not have this kind");
        // Addresses in use are known from Services too, so that look-up always gets an answer.
        if own_name(kind) != "IPAddress" {
            Snapshot::write(&self.snapshot).remove_api(&kind.0, &kind.1);
        }
    }

    fn set_failing(&self, kind: &Kind, error: &dyn std::error::Error) {
        let reason = error_chain(error);
        self.metrics.watch_error(&kind.1);
        repeated_failures::warn_of_watch(kind, &reason);
        let mut states = self.states_with(kind);
        let (since, usable) = match states.get(kind) {
            Some(State::Failing { since, usable, .. }) => (*since, *usable),
            before => (Instant::now(), matches!(before, Some(State::Synced | State::Absent))),
        };
        states.insert(kind.clone(), State::Failing { since, reason: reason.clone(), usable });
        drop(states);
        // Without a required kind, nothing is decided about any new request.
        if !usable || (!kinds::is_required(kind) && since.elapsed() > MAX_STALENESS) {
            self.set_unlisted(kind, &reason);
        }
    }

    /// Makes the look-ups of a kind fail until it is listed.
    fn set_unlisted(&self, kind: &Kind, reason: &str) {
        if !kinds::is_caller(kind) {
            let missing = Missing::Unlisted(reason.to_owned());
            Snapshot::write(&self.snapshot).set_missing(&kind.0, &kind.1, missing);
        }
    }
}

/// A streaming list that is not complete: the API server sends it as the first events of a watch. The list then takes
/// little memory, also that of large objects, and the API server reads nothing from etcd.
///
/// After anything unusual, all kinds are listed in pages from then on. An API server may refuse streaming lists, or
/// ignore that one is requested. And a tenant can make every one break off, with an object that is too large for an
/// event: the watcher alone would begin again for ever. An API server that is not available says nothing about
/// streaming lists.
#[derive(Default)]
struct Stream {
    begun: bool,
}

enum Streamed {
    Complete,
    Partly(Stream),
    /// The reason why the list failed.
    Failed(String),
}

impl Stream {
    /// The state after this event of the watcher; `None` if there was none for a while.
    fn next(self, event: Option<&watcher::Result<Event<PartialObject>>>) -> Streamed {
        match event {
            Some(Ok(Event::Init)) if self.begun => Streamed::Failed("a streaming list broke off".to_owned()),
            Some(Ok(Event::Init)) => Streamed::Partly(Self { begun: true }),
            Some(Ok(Event::InitDone)) => Streamed::Complete,
            Some(Ok(_)) => Streamed::Partly(self),
            Some(Err(watcher::Error::WatchStartFailed(error))) if !is_refusal(error) => Streamed::Partly(self),
            Some(Err(error)) => Streamed::Failed(error_chain(error)),
            None => Streamed::Failed("a streaming list did not end".to_owned()),
        }
    }
}

/// Whether the API server refuses the parameters of a request: with 422 if its streaming lists are turned off.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 422))
}

/// Is called with each event. It returns false to get no further events.
pub type Listener = Box<dyn FnMut(&Event<PartialObject>) -> bool + Send>;

/// Subscribers see every complete event of the watch of a kind. The stores keep only the part of each object that decisions
/// are made from, and a second watch would make the API server send everything twice.
#[derive(Default)]
struct Subscriptions(Mutex<BTreeMap<Kind, Entry>>);

#[derive(Default)]
struct Entry {
    listener: Option<Listener>,
    begun: bool,
    asks: Arc<Notify>,
}

impl Subscriptions {
    /// Requests a new list, and passes `listener` every event from its beginning.
    fn add(&self, kind: &Kind, listener: Listener) {
        self.with(kind, |entry| {
            (entry.listener, entry.begun) = (Some(listener), false);
            entry.asks.notify_one();
        });
    }

    fn show(&self, kind: &Kind, event: &Event<PartialObject>) {
        self.with(kind, |entry| {
            entry.begun |= matches!(event, Event::Init);
            let begun = entry.begun;
            if entry.listener.as_mut().is_some_and(|listener| begun && !listener(event)) {
                entry.listener = None;
            }
        });
    }

    fn asks(&self, kind: &Kind) -> Arc<Notify> {
        self.with(kind, |entry| Arc::clone(&entry.asks))
    }

    fn with<T>(&self, kind: &Kind, act: impl FnOnce(&mut Entry) -> T) -> T {
        act(self.0.lock().entry(kind.clone()).or_default())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests;
