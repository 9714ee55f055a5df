//! Reconciles one Service: looks at it, and moves it if it is misplaced and may move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use clusterip_cluster::api_error::{error_message, if_found};
use clusterip_cluster::background;
use clusterip_cluster::backoff::pause_after;
use clusterip_cluster::connect::{is_answer_too_large, request_at_most};
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::object::service_path;
use clusterip_cluster::snapshot::StoredService;
use clusterip_core::annotations::{MOVE_ANNOTATION, Move};
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::journal::SeamlessOptions;
use clusterip_moves::outcome::{Outcome, Size, Unmoved};
use http::Request;
use kube::Client;
use parking_lot::Mutex;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Semaphore, watch};

pub(crate) mod moves;
mod reports;

use self::moves::Movable;
use self::reports::EVENTS_AT_ONCE;
use super::brakes::{Brake, Brakes};
use super::replicas::Agreement;
use super::requests::{self, Requests};
use crate::leader::event_recorder::EventContent;
use crate::services::cluster_dns::{self, MAX_GRACE_PERIOD};
use crate::services::misplaced::{self, Allowed, AskedBy, Impact, Inspection, Misplaced, MoveRequest, NoTarget};
use crate::services::mover::{MoveError, Mover};
use crate::services::service_metrics::{ServiceMetrics, StayReason};

/// How soon a Service is looked at again after its move failed once. Each further failure doubles the pause.
const UNFINISHED: Duration = Duration::from_secs(2);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// After how many failures the Services of a namespace are tried a hundred times a minute at most, all together: each of
/// them waits [`FAILING_SHARE`] for each of them.
const QUICK_TRIES: u32 = 2;
const FAILING_SHARE: Duration = Duration::from_millis(600);
/// How soon a Service is looked at again whose endpoints became ready when its move would begin.
const STALE: Duration = Duration::from_millis(200);
/// How soon a Service is looked at again if it can't move for a reason that no watch reports.
const REPORTED: Duration = Duration::from_secs(60);
/// How soon a Service is looked at again if it stays for a reason of which the watches report almost every change.
const WATCHED: Duration = Duration::from_secs(600);
/// How long a Service that stayed because it answers must be without ready endpoints before it is moved. A Pod that is
/// restarted is ready again before that, and its clients must not lose the address as well.
const SILENCE: Duration = Duration::from_secs(30);
/// How often the removal of the annotation that asked for a move is tried while other clients change the Service.
const ANSWER_TRIES: usize = 3;

/// How soon a Service is looked at again if the replicas disagree, if a watch fails, or if a survey under new settings has
/// not ended.
const RECHECK_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When something changes that affects the Service.
    Change,
    After(Duration),
    /// When the Service has one of the places for large Services.
    AsLarge,
}

impl Next {
    /// When a Service that this brake stops is looked at again.
    fn of(brake: Brake) -> Self {
        match brake {
            Brake::Cooldown { until } | Brake::Rate { until } => {
                Self::After(until.saturating_duration_since(Instant::now()))
            }
            Brake::Settings(_) => Self::Change,
        }
    }

    /// The same, but after this pause at the latest.
    fn within(self, pause: Duration) -> Self {
        match self {
            Self::Change => Self::After(pause),
            Self::After(own) => Self::After(own.min(pause)),
            Self::AsLarge => Self::AsLarge,
        }
    }
}

/// The detail of a report that a Service stays because its address was set by hand.
pub const BY_HAND: &str = "its address was set by hand, as `metadata.managedFields` shows";

pub struct Reconciler {
    pub evaluator: Evaluator,
    pub(super) client: Client,
    pub mover: Mover,
    /// The server's namespace, which is that of the Lease.
    pub(super) namespace: String,
    pub requests: Requests,
    metrics: ServiceMetrics,
    pub allowed: Allowed,
    /// The settings that all replicas use; `None` if this is the only replica. Nothing moves while replicas use different
    /// ones: they would place Services that are created meanwhile by those.
    pub agreement: Option<watch::Receiver<Agreement>>,
    pub brakes: Mutex<Brakes>,
    known: Mutex<BTreeMap<ServiceKey, Known>>,
    /// One place for each Event that may be written beside other work.
    event_places: Arc<Semaphore>,
}

/// What this leader remembers of a Service that is or was misplaced.
#[derive(Default)]
struct Known {
    /// Why the misplaced Service stays, and the text of its last report.
    stays: Option<(StayReason, String)>,
    /// The pools that it lies in, if no pool matches it.
    unmatched: Vec<String>,
    /// The number of consecutive failures to move it, or to remove the annotation that asks for the move.
    failures: u32,
    /// The move is not tried again before this time, whatever the author of the Service writes.
    paused_until: Option<Instant>,
    /// Since when it has no ready endpoints, if it stayed because of them.
    silent_since: Option<Instant>,
    /// What the last read has shown, the Service as the stores showed it then, and when that was.
    read: Option<(Shown, Weak<StoredService>, Instant)>,
    /// When the reports so far no longer count towards the limit of reports.
    reports_paid: Option<Instant>,
    /// The Service with the annotation that was answered last, as the stores showed it.
    answered: Weak<StoredService>,
}

/// What a read of a Service has shown that the stores do not show. While they show the same version of the Service, it is
/// not read again for [`REPORTED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// It has changed, which the stores will show.
    Changed,
    /// It may move, but only as one of the larger Services.
    Large,
    TooLarge,
}

impl Known {
    fn stays_because_of(&self, reason: StayReason) -> bool {
        self.stays.as_ref().is_some_and(|(stays, _)| *stays == reason)
    }
}

impl Reconciler {
    /// A reconciler that moves what `allowed` allows, and records moves in `namespace`, the server's namespace.
    pub fn new(
        evaluator: Evaluator,
        client: Client,
        namespace: &str,
        metrics: ServiceMetrics,
        allowed: Allowed,
    ) -> Self {
        Self {
            mover: Mover::new(client.clone(), namespace),
            namespace: namespace.to_owned(),
            requests: Requests::default(),
            evaluator,
            client,
            metrics,
            allowed,
            agreement: None,
            brakes: Mutex::default(),
            known: Mutex::default(),
            event_places: Arc::new(Semaphore::new(EVENTS_AT_ONCE as usize)),
        }
    }

    fn agrees(&self) -> bool {
        let settings = self.evaluator.settings();
        self.agreement.as_ref().is_none_or(|agreement| agreement.borrow().is_on(&settings.hash))
    }

    /// How many Services that no pool matches have an address of each pool.
    pub fn unmatched(&self) -> BTreeMap<String, u64> {
        let mut count = BTreeMap::new();
        for pool in self.known.lock().values().flat_map(|known| &known.unmatched) {
            *count.entry(pool.clone()).or_insert(0) += 1;
        }
        count
    }

    pub fn misplaced_services(&self) -> BTreeSet<ServiceKey> {
        self.which(|known| known.stays.is_some())
    }

    /// Forgets all findings. The next leader makes its own, and so does this process when it leads again.
    pub fn forget(&self) {
        let mut known = self.known.lock();
        known.clear();
        self.metrics.none_stays();
    }

    pub fn waiting_for_addresses(&self) -> BTreeSet<ServiceKey> {
        self.which(|known| known.stays_because_of(StayReason::PoolFull))
    }

    /// The Services that stay because of the control plane, although it is known now that it does not call them.
    pub fn free_of_callers(&self) -> BTreeSet<ServiceKey> {
        let callers = self.evaluator.stores().control_plane_services();
        if !callers.complete() {
            return BTreeSet::new();
        }
        let mut free = self.which(|known| known.stays_because_of(StayReason::ControlPlane));
        free.retain(|id| callers.known_callers(&id.namespace, &id.name).is_empty());
        free
    }

    fn which(&self, is_one: impl Fn(&Known) -> bool) -> BTreeSet<ServiceKey> {
        let known = self.known.lock();
        known.iter().filter(|(_, known)| is_one(known)).map(|(id, _)| id.clone()).collect()
    }

    /// Finishes a move of the Service that another leader left. Then looks at the Service as the stores show it, and
    /// moves or reports it. A Service that is larger than `size` does not move.
    pub async fn reconcile(self: &Arc<Self>, id: &ServiceKey, size: Size) -> Next {
        match self.finish_left(id, size).await {
            Ok(None) => self.reconcile_stored(id, size).await,
            Ok(Some(rest)) => self.reconcile_stored(id, size).await.within(rest),
            Err(next) => next,
        }
    }

    async fn reconcile_stored(self: &Arc<Self>, id: &ServiceKey, size: Size) -> Next {
        let Some(record) = self.evaluator.stores().stored_service(id) else {
            self.forget_service(id);
            // No Service has an empty UID: this only marks the request as considered, so that it is answered.
            self.requests.consider(id, "");
            self.answer_request(id).await;
            return Next::Change;
        };
        if self.is_temporary(&record) {
            self.forget_service(id);
            return Next::Change;
        }
        match self.inspect(id, Arc::clone(&record)).await {
            Ok(Inspection::InPlace) => {
                self.clear_findings(id);
                // The annotation that asks for the move could not be removed.
                if let Some(rest) = self.remaining_pause(id).filter(|_| record.asked_move() == Some(Move::Now)) {
                    return Next::After(rest);
                }
                if self.requests.considered(id).is_some() {
                    let uid = &record.uid();
                    let note = "not moved: with the server's settings, it is in its pool".to_owned();
                    self.publish_event(id, EventContent { uid, warning: false, reason: "AddressNotMoved", note }).await;
                }
                let next = self.remove_request_and_annotation(id, &record).await;
                if next == Next::Change {
                    self.forget_failures(id);
                }
                next
            }
            Ok(Inspection::HalfMoved) => {
                let next = self.half_moved(id, &record, size).await;
                if next != Next::AsLarge {
                    self.answer_request(id).await;
                }
                next
            }
            // While a watch fails, the stores may be outdated. A plain move would learn only while the Service has no
            // address that another Service uses the target.
            Ok(Inspection::Misplaced(_)) if !self.agrees() || self.evaluator.stores().stale_since().is_some() => {
                Next::After(RECHECK_AFTER)
            }
            Ok(Inspection::Misplaced(misplaced))
                if misplaced.asked_by != AskedBy::Administrator
                    && self.brakes.lock().is_undecided_in(&id.namespace) =>
            {
                Next::After(RECHECK_AFTER)
            }
            Ok(Inspection::Misplaced(misplaced)) => self.misplaced(id, &record, *misplaced, size).await,
            Err(error) => {
                let error = error.to_string();
                tracing::error!(namespace = id.namespace, name = id.name, error, "no decision about a Service");
                Next::After(REPORTED)
            }
        }
    }

    async fn inspect(self: &Arc<Self>, id: &ServiceKey, service: Arc<StoredService>) -> anyhow::Result<Inspection> {
        let request = self.requests.consider(id, &service.uid());
        let this = Arc::clone(self);
        let inspect =
            move || misplaced::inspect(&this.evaluator, &service, &this.allowed, &this.namespace, request.as_ref());
        background::run(&id.namespace, inspect).await?
    }

    async fn misplaced(
        self: &Arc<Self>,
        id: &ServiceKey,
        record: &Arc<StoredService>,
        misplaced: Misplaced,
        size: Size,
    ) -> Next {
        self.known.lock().entry(id.clone()).or_default().unmatched.clone_from(&misplaced.unmatched);
        let shown = self.shown(id, record);
        if misplaced.asked_by != AskedBy::Administrator {
            if shown == Some(Shown::Changed) {
                return Next::After(REPORTED);
            }
            if let Some(rest) = self.remaining_pause(id) {
                // What failed may have been the removal of an annotation, before the Service was misplaced.
                if self.known.lock().get(id).is_none_or(|known| known.stays.is_none()) {
                    self.remember(id, StayReason::Moving, &misplaced.why);
                }
                return Next::After(rest);
            }
        }
        if let Some(rest) = self.remaining_silence(id, &misplaced) {
            return Next::After(rest);
        }
        // An address set by hand is reported before any other reason, because only a change of the Service ends it.
        let stays = match &misplaced.stays {
            _ if record.by_hand() != Some(false) => Some((StayReason::ByHand, BY_HAND.to_owned())),
            Some(stays) => Some(stays.clone()),
            None => (shown == Some(Shown::TooLarge)).then(too_large),
        };
        if let Some((reason, detail)) = stays {
            // The stores may still show the annotation of the author after it has been answered and removed.
            if misplaced.asked_by == AskedBy::Author
                && shown.is_none_or(|shown| shown == Shown::Large)
                && matches!(self.read(id, record, &misplaced, Size::Large).await, Ok(Movable::Changed))
            {
                return Next::After(REPORTED);
            }
            return self.report_stay(id, record, &misplaced, reason, &detail).await;
        }
        if shown == Some(Shown::Large) && size != Size::Large {
            return Next::AsLarge;
        }
        let braked = self.brakes.lock().take(id, misplaced.asked_by, Instant::now());
        if let Err(brake) = braked {
            return self.report_brake(id, record, &misplaced, brake).await;
        }
        // The Service is read from the API server only now: with one write, a tenant can change the pools of many
        // Services.
        let read = self.read(id, record, &misplaced, size).await;
        let live = match read {
            Ok(Movable::Yes(live)) => live,
            not_movable => {
                self.brakes.lock().take_back(id);
                return match not_movable {
                    Ok(Movable::SetByHand) => {
                        self.report_stay(id, record, &misplaced, StayReason::ByHand, BY_HAND).await
                    }
                    // The stores do not know how large the Service is.
                    Ok(Movable::Larger(None)) => {
                        let (reason, detail) = too_large();
                        self.report_stay(id, record, &misplaced, reason, &detail).await
                    }
                    Ok(Movable::Larger(Some(_))) => Next::AsLarge,
                    Err(error) => unreadable(id, &error),
                    Ok(_) => Next::After(REPORTED),
                };
            }
        };
        // Addresses are reserved only now, so that none are reserved for a Service that has to wait.
        let (to, evaluation) = match self.reserve_targets(Arc::clone(record)).await {
            Ok(reserved) => reserved,
            Err(reason) => {
                self.brakes.lock().take_back(id);
                return match reason {
                    NoTarget::Full(detail) => {
                        self.report_stay(id, record, &misplaced, StayReason::PoolFull, &detail).await
                    }
                    NoTarget::Unknown(reason) => {
                        tracing::warn!(namespace = id.namespace, name = id.name, %reason, "no address could be reserved");
                        Next::After(UNFINISHED)
                    }
                };
            }
        };
        self.remember(id, StayReason::Moving, &misplaced.why);
        let request = self.requests.consider(id, &misplaced.uid);
        let seamless = seamless_options(&self.client, request, self.allowed.seamless.as_ref()).await;
        let order = (to, evaluation, seamless);
        let ended = self.carry_out(id, *live, &misplaced, order, size).await;
        let next = self.next_after(id, &ended, size);
        if next == Next::AsLarge {
            return next;
        }
        let next = self.resume_later(&misplaced.uid, next);
        self.remove_request_and_annotation(id, record).await;
        next
    }

    /// Deletes the request to move a Service, and removes the annotation that asks for the move from the Service. If the
    /// annotation can't be removed, that is tried again as rarely as a move that fails. That of a Service which is known
    /// to be too large stays.
    async fn remove_request_and_annotation(&self, id: &ServiceKey, record: &Arc<StoredService>) -> Next {
        self.answer_request(id).await;
        let is_needless = self.shown(id, record).is_some_and(|shown| shown != Shown::Large);
        if is_needless || record.asked_move() != Some(Move::Now) {
            return Next::Change;
        }
        let Some(shown) = self.remove_annotation(id).await else { return self.after_failure(id) };
        self.note(id, record, shown);
        Next::Change
    }

    /// Removes the annotation that asks for a move. Returns what the Service is now; `None` if that failed.
    async fn remove_annotation(&self, id: &ServiceKey) -> Option<Shown> {
        for _ in 0..ANSWER_TRIES {
            let live = match self.live(id).await {
                Ok(Some(live)) => live,
                Ok(None) => return Some(Shown::Changed),
                Err(error) => return is_answer_too_large(&error).then_some(Shown::TooLarge),
            };
            let Some(body) = without_move_now(&live) else { return Some(Shown::Changed) };
            let request = Request::put(service_path(&id.namespace, &id.name)).body(body).ok()?;
            match self.client.request_text(request).await {
                Ok(_) => return Some(Shown::Changed),
                // Another client has changed the Service. If the annotation stayed, it would be answered again.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Deletes the request to move a Service, if there is one that was considered. `clusterip move` waits for that.
    async fn answer_request(&self, id: &ServiceKey) {
        let Some(request) = self.requests.forget(id) else { return };
        if let Err(error) = requests::withdraw(&self.client, &self.namespace, &request.uid).await {
            tracing::warn!(
                namespace = id.namespace,
                name = id.name,
                error = error_message(&error),
                "the request for a move was not deleted"
            );
        }
    }

    /// Reads a Service from the API server, as text: the values of a large Service take many times the memory.
    async fn live(&self, id: &ServiceKey) -> Result<Option<Vec<u8>>, kube::Error> {
        let request =
            Request::get(service_path(&id.namespace, &id.name)).body(Vec::new()).map_err(kube::Error::HttpError)?;
        if_found(request_at_most(&self.client, request, Size::Large.most_read()).await.map(Some))
    }

    /// When to look at a Service again after its move ended like this.
    fn next_after(&self, id: &ServiceKey, ended: &Result<Outcome, MoveError>, size: Size) -> Next {
        match ended {
            _ if outgrows(ended, size) => {
                // A move that was recorded counts: it has temporary Services until it has a place for large ones.
                match self.mover.unfinished.of(id) {
                    None => self.brakes.lock().take_back(id),
                    Some(_) => self.brakes.lock().end_cooldown(id),
                }
                Next::AsLarge
            }
            // The preparation itself has changed the Service, so a change is no reason to try again.
            Ok(Outcome::Unmoved(Unmoved::NotPrepared { .. })) => Next::After(REPORTED),
            // The Service is still misplaced. The next look finds in the stores why it stays.
            Ok(Outcome::Unmoved(Unmoved::Reachable)) => Next::After(STALE),
            Ok(Outcome::Unmoved(Unmoved::TooLarge)) => Next::After(UNFINISHED),
            Ok(outcome) => {
                self.clear_findings(id);
                self.forget_failures(id);
                match outcome {
                    Outcome::Moved { .. } | Outcome::Unmoved(_) => Next::Change,
                    _ => Next::After(REPORTED),
                }
            }
            Err(MoveError::Untouched(_)) => {
                self.after_failure(id);
                Next::After(REPORTED)
            }
            // The Service may have no address now, so the move is tried again until it ends, at growing intervals.
            Err(error) => {
                // The API server did not answer, so this does not count as a move of the Service.
                if matches!(error, MoveError::Unfinished(_)) {
                    self.brakes.lock().take_back(id);
                }
                self.after_failure(id)
            }
        }
    }

    /// Counts a failed move, or a failed removal of the annotation that asks for it, and tells when to look again: not
    /// later than an unfinished move of the Service goes on or deletes its temporary Services.
    fn after_failure(&self, id: &ServiceKey) -> Next {
        let now = Instant::now();
        let unfinished = &self.mover.unfinished;
        let (end, is_past_deadline) = (unfinished.next_end(id, now), unfinished.is_past_deadline(id, now));
        let mut all = self.known.lock();
        let of_namespace = all.iter().filter(|(other, _)| other.namespace == id.namespace);
        let failing: u32 = of_namespace.map(|(_, known)| u32::from(known.failures > QUICK_TRIES)).sum();
        let known = all.entry(id.clone()).or_default();
        known.failures = known.failures.saturating_add(1);
        let has_share = known.failures > QUICK_TRIES && !is_past_deadline;
        let share = if has_share { FAILING_SHARE * failing } else { Duration::ZERO };
        let pause = pause_after(known.failures, UNFINISHED, MAX_PAUSE).max(share);
        let pause = end.map_or(pause, |end| pause.min(end - now));
        known.paused_until = Some(now + pause);
        Next::After(pause)
    }

    /// Whether an unfinished move of the Service goes on now, before other Services of its namespace. One that has failed
    /// again and again has to wait like these, unless it has temporary Services.
    pub fn goes_on_now(&self, id: &ServiceKey) -> bool {
        let (now, unfinished) = (Instant::now(), &self.mover.unfinished);
        let is_failing = || self.known.lock().get(id).is_some_and(|known| known.failures > QUICK_TRIES);
        unfinished.of(id).is_some_and(|(_, due)| due <= now) && (!is_failing() || unfinished.has_deadline(id))
    }

    fn forget_failures(&self, id: &ServiceKey) {
        if let Some(known) = self.known.lock().get_mut(id) {
            (known.failures, known.paused_until) = (0, None);
        }
    }

    /// How long to wait until a Service has been without ready endpoints for [`SILENCE`]; `None` if it may move now.
    fn remaining_silence(&self, id: &ServiceKey, misplaced: &Misplaced) -> Option<Duration> {
        let mut known = self.known.lock();
        let known = known.get_mut(id)?;
        let is_silent = misplaced.impact == Impact::Unnoticed && misplaced.asked_by == AskedBy::Controller;
        if !known.stays_because_of(StayReason::ReadyEndpoints) || !is_silent {
            known.silent_since = None;
            return None;
        }
        let since = *known.silent_since.get_or_insert_with(Instant::now);
        Some(SILENCE.saturating_sub(since.elapsed())).filter(|rest| !rest.is_zero())
    }

    /// Whether a Service is known not to be able to move now: it is too large, or its move has just failed.
    pub fn is_stuck(&self, id: &ServiceKey, record: &Arc<StoredService>) -> bool {
        self.remaining_pause(id).is_some() || self.shown(id, record) == Some(Shown::TooLarge)
    }

    /// What a read of this version of a Service has shown, if that was less than [`REPORTED`] ago. A change of a field
    /// that the stores do not keep shows only after that time.
    fn shown(&self, id: &ServiceKey, record: &Arc<StoredService>) -> Option<Shown> {
        let known = self.known.lock();
        let (shown, of, at) = known.get(id)?.read.as_ref()?;
        (at.elapsed() < REPORTED && of.as_ptr() == Arc::as_ptr(record)).then_some(*shown)
    }

    fn note(&self, id: &ServiceKey, record: &Arc<StoredService>, shown: Shown) {
        self.known.lock().entry(id.clone()).or_default().read = Some((shown, Arc::downgrade(record), Instant::now()));
    }

    /// How long to wait before a failed move of this Service is tried again; `None` if it may be tried now.
    fn remaining_pause(&self, id: &ServiceKey) -> Option<Duration> {
        let until = self.known.lock().get(id)?.paused_until?;
        Some(until.saturating_duration_since(Instant::now())).filter(|rest| !rest.is_zero())
    }
}

/// Whether a move found its Service, or its record, larger than `size`, and goes on in a place for large Services.
fn outgrows(ended: &Result<Outcome, MoveError>, size: Size) -> bool {
    matches!(ended, Ok(Outcome::Unmoved(Unmoved::TooLarge)) | Err(MoveError::TooLarge(_))) && size < Size::Large
}

/// The options of a seamless move; `None` for a plain move. The administrator who requested the move has chosen the
/// method and the grace period. Without a request, the options of the server decide.
///
/// The domain is always that of the server: during the swap, clients are sent to a name in it, and an account that may
/// write requests must not choose where that is.
async fn seamless_options(
    client: &Client,
    request: Option<MoveRequest>,
    server: Option<&SeamlessOptions>,
) -> Option<SeamlessOptions> {
    let Some(request) = request else { return server.cloned() };
    let grace_period = request.seamless?.grace_period.min(MAX_GRACE_PERIOD);
    let domain = server.map(|server| server.cluster_domain.as_str());
    Some(cluster_dns::options(client, Some(grace_period), domain).await)
}

fn too_large() -> (StayReason, String) {
    (StayReason::TooLarge, Unmoved::TooLarge.to_string())
}

/// The Service with this text, without the annotation with which its author asks for a move; `None` if it has no such
/// annotation. All other fields stay text.
fn without_move_now(service: &[u8]) -> Option<Vec<u8>> {
    type Fields = BTreeMap<String, Box<RawValue>>;
    let mut service: Fields = serde_json::from_slice(service).ok()?;
    let mut metadata: Fields = serde_json::from_str(service.get("metadata")?.get()).ok()?;
    let mut annotations: BTreeMap<String, String> = serde_json::from_str(metadata.get("annotations")?.get()).ok()?;
    Move::parse(&annotations.remove(MOVE_ANNOTATION)?).filter(|asked| *asked == Move::Now)?;
    metadata.insert("annotations".to_owned(), to_raw_value(&annotations).ok()?);
    service.insert("metadata".to_owned(), to_raw_value(&metadata).ok()?);
    serde_json::to_vec(&service).ok()
}

/// What follows if a Service can't be read: it is tried again.
fn unreadable(id: &ServiceKey, error: &kube::Error) -> Next {
    tracing::warn!(namespace = id.namespace, name = id.name, error = error_message(error), "the Service can't be read");
    Next::After(if is_answer_too_large(error) { WATCHED } else { UNFINISHED })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
