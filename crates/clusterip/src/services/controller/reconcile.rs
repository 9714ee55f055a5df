//! Reconciles one Service: looks at it, and moves it if it is misplaced and may move.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::background;
use clusterip_cluster::connect::{is_answer_too_large, request_at_most};
use clusterip_cluster::evaluator::Evaluator;
use clusterip_cluster::lookups::snapshot::StoredService;
use clusterip_cluster::object::{service_path, text};
use clusterip_core::annotations::{MOVE_ANNOTATION, Move};
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::may_be_set_by_hand;
use http::Request;
use kube::Client;
use parking_lot::Mutex;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::watch;

mod left_moves;
mod reports;
mod retries;
mod run_move;

use self::left_moves::AfterLeft;
use self::reports::ReportLimit;
use self::retries::Failures;
use super::brakes::Brakes;
use super::replicas::Agreement;
use super::requests::{self, Requests};
use crate::services::misplaced::{self, Allowed, AskedBy, Handling, Inspection, Misplaced, NoTarget};
use crate::services::mover::Mover;
use crate::services::service_metrics::{ServiceMetrics, StayReason};
use clusterip_moves::journal::SeamlessOptions;
use clusterip_moves::outcome::{Size, Unmoved};

/// How soon a Service is looked at again after its move failed once. Each further failure doubles the pause.
const UNFINISHED: Duration = Duration::from_secs(2);
/// How soon a Service is looked at again if it has changed since the stores saw it.
const STALE: Duration = Duration::from_millis(200);
/// How soon a Service is looked at again if it can't move for a reason that no watch reports.
const REPORTED: Duration = Duration::from_secs(60);
/// How soon a Service is looked at again if it stays for a reason of which the watches report almost every change.
const WATCHED: Duration = Duration::from_secs(600);
/// How long a Service that stayed because it answers must be without ready endpoints before it is moved. A Pod that is
/// restarted is ready again before that, and its clients must not lose the address as well.
const SILENCE: Duration = Duration::from_secs(30);
/// How often the controller tries to remove the annotation that asked for a move, while other clients change the
/// Service.
const ANSWER_TRIES: usize = 3;

/// How soon a Service is looked at again if the replicas use different settings, or if a survey under new settings has
/// not ended.
const DISAGREEMENT: Duration = Duration::from_secs(1);

/// When a Service is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When something changes that affects the Service.
    Change,
    After(Duration),
    /// When the Service has one of the places for large Services.
    AsLarge,
}

impl Next {
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

/// Whether a misplaced Service may be moved.
#[derive(Clone, Debug, PartialEq)]
pub enum Movable {
    /// The Service may be moved. Contains the Service as it was read.
    Yes(Box<Value>),
    /// The Service is not as the stores showed it.
    Changed,
    SetByHand,
    /// The Service is larger than those that move now. Contains its size; `None` if it is too large to move.
    Larger(Option<Size>),
}

pub struct Reconciler {
    pub evaluator: Evaluator,
    client: Client,
    pub mover: Mover,
    /// The server's namespace.
    namespace: String,
    /// What administrators request.
    pub requests: Requests,
    metrics: ServiceMetrics,
    pub allowed: Allowed,
    /// The options of seamless moves; `None` for plain moves.
    seamless: Option<SeamlessOptions>,
    /// The settings that all replicas use; `None` if this is the only replica.
    agreement: Option<watch::Receiver<Agreement>>,
    pub brakes: Mutex<Brakes>,
    found: Mutex<Found>,
}

/// What is known of Services that are not in place.
#[derive(Default)]
struct Found {
    /// Why each misplaced Service stays, and the text of its last report.
    misplaced: BTreeMap<ServiceKey, (StayReason, String)>,
    /// The Services that no pool matches, with the pools that they lie in.
    unmatched: BTreeMap<ServiceKey, Vec<String>>,
    /// The failed moves of each Service.
    failures: BTreeMap<ServiceKey, Failures>,
    /// Since when the Services have no ready endpoints that stayed because of them.
    silent: BTreeMap<ServiceKey, Instant>,
    /// The Services that were too large to move when they were last read, also if they are in place now.
    large: BTreeMap<ServiceKey, Large>,
    reports: ReportLimit,
}

/// A Service that was too large to move.
struct Large {
    /// The Service as the stores showed it.
    record: Weak<StoredService>,
    at: Instant,
}

impl Reconciler {
    /// A reconciler that decides with `evaluator`, and moves what `allowed` allows. It records moves in `namespace`,
    /// the server's namespace.
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
            seamless: None,
            agreement: None,
            brakes: Mutex::default(),
            found: Mutex::default(),
        }
    }

    /// Makes the reconciler move nothing while other replicas use other settings: they would place Services that are
    /// created meanwhile by those settings.
    pub fn agreeing(self, agreement: watch::Receiver<Agreement>) -> Self {
        Self { agreement: Some(agreement), ..self }
    }

    /// Makes the reconciler move Services with ready endpoints seamlessly, with these options.
    pub fn seamless(self, options: Option<SeamlessOptions>) -> Self {
        let allowed = Allowed { seamless: options.is_some(), ..self.allowed };
        Self { seamless: options, allowed, ..self }
    }

    fn agrees(&self) -> bool {
        let settings = self.evaluator.settings();
        self.agreement.as_ref().is_none_or(|agreement| agreement.borrow().is_on(&settings.hash))
    }

    /// How many Services that no pool matches have an address of each pool.
    pub fn unmatched(&self) -> BTreeMap<String, u64> {
        let mut count = BTreeMap::new();
        for pool in self.found.lock().unmatched.values().flatten() {
            *count.entry(pool.clone()).or_insert(0) += 1;
        }
        count
    }

    /// The Services that belong to another pool.
    pub fn misplaced_services(&self) -> BTreeSet<ServiceKey> {
        self.found.lock().misplaced.keys().cloned().collect()
    }

    /// Forgets all findings. The next leader makes its own, and so does this process when it leads again.
    pub fn forget(&self) {
        let mut found = self.found.lock();
        *found = Found::default();
        self.count(&found);
    }

    /// The Services that would move if their pool had a free address.
    pub fn waiting_for_addresses(&self) -> Vec<ServiceKey> {
        let found = self.found.lock();
        let waiting = found.misplaced.iter().filter(|(_, (reason, _))| *reason == StayReason::PoolFull);
        waiting.map(|(id, _)| id.clone()).collect()
    }

    /// The Services that stay because of the control plane, although it is known now that it does not call them.
    pub fn free_of_callers(&self) -> Vec<ServiceKey> {
        let callers = self.evaluator.stores().control_plane_services();
        if !callers.complete() {
            return Vec::new();
        }
        let found = self.found.lock();
        let kept = found.misplaced.iter().filter(|(_, (reason, _))| *reason == StayReason::ControlPlane);
        kept.map(|(id, _)| id).filter(|id| callers.known_callers(&id.namespace, &id.name).is_empty()).cloned().collect()
    }

    /// Finishes a move of the Service that another leader left. Then looks at the Service as the stores show it, and
    /// moves or reports it. A Service that is larger than `size` does not move.
    pub async fn reconcile(self: &Arc<Self>, id: &ServiceKey, size: Size) -> Next {
        match self.finish_left(id, size).await {
            AfterLeft::Reconcile => self.reconcile_stored(id, size).await,
            AfterLeft::LookAgain(rest) => self.reconcile_stored(id, size).await.within(rest),
            AfterLeft::TryAgain(next) => next,
        }
    }

    /// Looks at a Service as the stores show it, and moves or reports it.
    async fn reconcile_stored(self: &Arc<Self>, id: &ServiceKey, size: Size) -> Next {
        let Some(record) = self.evaluator.stores().stored_service(id) else {
            self.forget_service(id);
            // No Service has an empty UID: this only marks the request as considered, so that it is answered.
            self.requests.consider(id, "");
            self.answer_request(id).await;
            return Next::Change;
        };
        let service = record.value();
        if self.is_temporary(&service) {
            self.forget_service(id);
            return Next::Change;
        }
        match self.inspect(id, service.clone()).await {
            Ok(Inspection::InPlace) => {
                self.clear_findings(id);
                // The annotation that asks for the move could not be removed.
                if let Some(rest) = self.remaining_pause(id).filter(|_| Move::of(&service) == Some(Move::Now)) {
                    return Next::After(rest);
                }
                self.answer_requester(id, &service, "not moved: with the server's settings, it is in its pool").await;
                let next = self.remove_request_and_annotation(id, &service).await;
                if next == Next::Change {
                    self.found.lock().failures.remove(id);
                }
                next
            }
            Ok(Inspection::HalfMoved) => {
                let next = self.half_moved(id, &service, size).await;
                if next != Next::AsLarge {
                    self.answer_request(id).await;
                }
                next
            }
            Ok(Inspection::Misplaced(_)) if !self.agrees() => Next::After(DISAGREEMENT),
            Ok(Inspection::Misplaced(misplaced))
                if misplaced.asked_by != AskedBy::Administrator
                    && self.brakes.lock().is_undecided_in(&id.namespace) =>
            {
                Next::After(DISAGREEMENT)
            }
            Ok(Inspection::Misplaced(misplaced)) => self.misplaced(id, (&record, &service), *misplaced, size).await,
            Err(error) => {
                let error = error.to_string();
                tracing::error!(namespace = id.namespace, name = id.name, error, "no decision about a Service");
                Next::After(REPORTED)
            }
        }
    }

    async fn inspect(self: &Arc<Self>, id: &ServiceKey, service: Value) -> anyhow::Result<Inspection> {
        let request = self.requests.consider(id, text(&service, &["metadata", "uid"]));
        let this = Arc::clone(self);
        let inspect = move || misplaced::inspect(&this.evaluator, &service, this.allowed, request.as_ref());
        Ok(background::run(&id.namespace, inspect).await??)
    }

    async fn misplaced(
        self: &Arc<Self>,
        id: &ServiceKey,
        (record, service): (&Arc<StoredService>, &Value),
        misplaced: Misplaced,
        size: Size,
    ) -> Next {
        match misplaced.pool {
            Some(_) => self.found.lock().unmatched.remove(id),
            None => self.found.lock().unmatched.insert(id.clone(), misplaced.lies_in.clone()),
        };
        if let Some(rest) = self.remaining_pause(id).filter(|_| misplaced.asked_by != AskedBy::Administrator) {
            return Next::After(rest);
        }
        if let Some(rest) = self.remaining_silence(id, &misplaced) {
            return Next::After(rest);
        }
        // An address set by hand is reported before any other reason, because only a change of the Service ends it.
        let stays = match &misplaced.handling {
            _ if may_be_set_by_hand(service) => Some((StayReason::ByHand, BY_HAND.to_owned())),
            Handling::Report { reason, detail } => Some((*reason, detail.clone())),
            Handling::Move => self.is_known_as_large(id, record).then(too_large),
        };
        if let Some((reason, detail)) = stays {
            // The stores may still show the annotation of the author after it has been answered and removed.
            if misplaced.asked_by == AskedBy::Author
                && matches!(self.movable(id, &misplaced, Size::Large).await, Ok(Movable::Changed))
            {
                return Next::After(STALE);
            }
            return self.report_stay(id, service, &misplaced, reason, &detail).await;
        }
        let braked = self.brakes.lock().take(id, misplaced.asked_by, Instant::now());
        if let Err(brake) = braked {
            return self.report_brake(id, service, &misplaced, brake).await;
        }
        // The Service is read from the API server only now: with one write, a tenant can change the pools of many
        // Services.
        let read = self.movable(id, &misplaced, size).await;
        let live = match read {
            Ok(Movable::Yes(live)) => live,
            not_movable => {
                self.brakes.lock().take_back(id);
                return match not_movable {
                    Ok(Movable::SetByHand) => {
                        self.report_stay(id, service, &misplaced, StayReason::ByHand, BY_HAND).await
                    }
                    // The stores do not know how large the Service is.
                    Ok(Movable::Larger(None)) => {
                        let large = Large { record: Arc::downgrade(record), at: Instant::now() };
                        self.found.lock().large.insert(id.clone(), large);
                        let (reason, detail) = too_large();
                        self.report_stay(id, service, &misplaced, reason, &detail).await
                    }
                    Ok(Movable::Larger(Some(_))) => Next::AsLarge,
                    Err(error) => unreadable(id, &error),
                    Ok(_) => Next::After(STALE),
                };
            }
        };
        // Addresses are reserved only now, so that none are reserved for a Service that has to wait.
        let (to, evaluation) = match self.reserve_targets(service.clone()).await {
            Ok(reserved) => reserved,
            Err(reason) => {
                self.brakes.lock().take_back(id);
                return match reason {
                    NoTarget::Full(detail) => {
                        self.report_stay(id, service, &misplaced, StayReason::PoolFull, &detail).await
                    }
                    NoTarget::Unknown(reason) => {
                        tracing::warn!(namespace = id.namespace, name = id.name, %reason, "no address could be reserved");
                        Next::After(UNFINISHED)
                    }
                };
            }
        };
        self.remember(id, StayReason::Moving, &misplaced.why());
        let request = self.requests.consider(id, &misplaced.uid);
        let seamless = requests::seamless_options(request, self.seamless.as_ref());
        let order = (to, evaluation, seamless);
        let ended = self.carry_out(*live, &misplaced, order, size).await;
        let next = self.next_after(id, &ended, size);
        if next == Next::AsLarge {
            return next;
        }
        let next = self.resume_later(&misplaced.uid, next);
        self.remove_request_and_annotation(id, service).await;
        next
    }

    /// Deletes the request to move a Service, and removes the annotation that asks for the move from the Service. If the
    /// annotation can't be removed, that is tried again as rarely as a move that fails.
    async fn remove_request_and_annotation(&self, id: &ServiceKey, service: &Value) -> Next {
        self.answer_request(id).await;
        if Move::of(service) == Some(Move::Now) && !self.remove_annotation(id).await {
            return self.after_failure(id);
        }
        Next::Change
    }

    /// Removes the annotation that asks for a move. Returns whether it is gone.
    async fn remove_annotation(&self, id: &ServiceKey) -> bool {
        for _ in 0..ANSWER_TRIES {
            let live = match self.live(id).await {
                Ok(Some(live)) => live,
                Ok(None) => return true,
                // The annotation of a Service that is too large to read stays.
                Err(error) => return is_answer_too_large(&error),
            };
            let Some(body) = without_move_now(&live) else { return true };
            let Ok(request) = Request::put(service_path(&id.namespace, &id.name)).body(body) else { return false };
            match self.client.request_text(request).await {
                Ok(_) => return true,
                // Another client has changed the Service. If the annotation stayed, it would be answered again.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(_) => return false,
            }
        }
        false
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
        match request_at_most(&self.client, request, Size::Large.most_read()).await {
            Ok(service) => Ok(Some(service)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }
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
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotation_that_asks_for_a_move_is_removed_alone() {
        let service = |annotations: Value| {
            let metadata = json!({"name": "web", "annotations": annotations, "managedFields": [{"manager": "é"}]});
            json!({"kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}})
        };
        let other = json!({"example.com/text": "a \" \u{1} é"});
        for (name, value, is_removed) in [("now", "now", true), ("another value", "never", false)] {
            let mut annotations = other.clone();
            annotations[MOVE_ANNOTATION] = value.into();
            let left = without_move_now(service(annotations).to_string().as_bytes());
            let left = left.map(|left| serde_json::from_slice::<Value>(&left).unwrap());
            assert_eq!(left, is_removed.then(|| service(other.clone())), "{name}");
        }
        assert_eq!(without_move_now(service(other).to_string().as_bytes()), None);
        assert_eq!(without_move_now(b"{}"), None);
    }
}
