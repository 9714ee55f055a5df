//! Reconciles one Service: looks at it, and moves it if it is misplaced and may move.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::Request;
use kube::Client;
use serde_json::Value;
use tokio::sync::watch;

use super::brakes::{Brake, Brakes};
use super::event_recorder::{Told, tell};
use super::journal::Journal;
use super::misplaced::{self, Allowed, AskedBy, Finding, MOVE_ANNOTATION, Misplaced, NoTarget, Verdict};
use super::mover::{MoveError, Mover, Order};
use super::outcome::{Outcome, Unmoved};
use super::ownership::set_by_hand;
use super::records::RecordError;
use super::replicas::Agreement;
use super::requests::{self, Requests};
use super::step;
use super::targets::Alternatives;
use crate::background;
use crate::cluster::api_error::words;
use crate::cluster::ledger::Owner;
use crate::cluster::object::{service_path, text};
use crate::cluster::service_key::ServiceKey;
use crate::cluster::snapshot::addresses;
use crate::evaluator::{Evaluation, Evaluator};
use crate::metrics::{Metrics, Misplaced as Reason, MoveResult};

/// How soon a Service is looked at again after its move failed once. Each further failure doubles the pause.
const UNFINISHED: Duration = Duration::from_secs(2);
/// The longest pause between two tries of a move that fails.
const MOST_RARELY: Duration = Duration::from_secs(60);
/// How long a request whose sender is gone may still be carried out: longer than an API server works on one.
const RELEASE_ARRIVES: Duration = Duration::from_secs(90);
/// How soon a Service is looked at again if it has changed since the stores saw it.
const STALE: Duration = Duration::from_millis(200);
/// How soon a Service is looked at again if it can't move for a reason that no watch reports.
const REPORTED: Duration = Duration::from_secs(60);

/// How soon a Service is looked at again if the replicas use different settings.
const DISAGREEMENT: Duration = Duration::from_secs(1);

/// When a Service is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When something changes that affects the Service.
    Change,
    /// After this pause.
    After(Duration),
}

/// The detail of a report that a Service stays because its address was set by hand.
pub const BY_HAND: &str = "its address was set by hand: `metadata.managedFields` say so";

/// Whether a misplaced Service may be moved.
#[derive(Clone, Debug, PartialEq)]
pub enum Movable {
    /// The Service may be moved. Contains the Service as it was read.
    Yes(Box<Value>),
    /// The Service is not as the stores showed it.
    Changed,
    /// The address of the Service was set by hand.
    SetByHand,
}

/// Looks at Services, and moves them.
pub struct Reconciler {
    evaluator: Evaluator,
    client: Client,
    mover: Mover,
    /// The server's namespace.
    namespace: String,
    requests: Requests,
    metrics: Arc<Metrics>,
    allowed: Allowed,
    /// The settings that all replicas use; `None` if this is the only replica.
    agreement: Option<watch::Receiver<Agreement>>,
    brakes: Mutex<Brakes>,
    found: Mutex<Found>,
    /// The moves that another leader left unfinished, by Service.
    left: Mutex<BTreeMap<ServiceKey, Left>>,
}

/// A move that another leader left unfinished.
#[derive(Clone)]
struct Left {
    /// The UID of the Service, by which the record is found.
    uid: String,
    /// When this process first listed the record.
    since: Instant,
}

/// What to do about a Service after [`Reconciler::finish_left`].
enum AfterLeft {
    /// The move has ended. The Service is reconciled as any other.
    Reconcile,
    /// The move has not begun, but may still begin within this time. The Service is reconciled as any other, and once
    /// more after that time.
    LookAgain(Duration),
    /// The move could not be finished. It is tried again.
    TryAgain(Next),
}

/// What is known of Services that are not in place.
#[derive(Default)]
struct Found {
    /// Why each misplaced Service stays, and the text of its last report.
    misplaced: BTreeMap<ServiceKey, (Reason, String)>,
    /// The Services that no pool is for, with the pools that they lie in.
    squatters: BTreeMap<ServiceKey, Vec<String>>,
    /// The failed moves of each Service.
    failures: BTreeMap<ServiceKey, Failures>,
}

/// Consecutive failed moves of a Service.
struct Failures {
    count: u32,
    /// The move is not tried again before this time, whatever the author of the Service writes.
    until: Instant,
}

impl Reconciler {
    /// A reconciler that decides with `evaluator`, and moves what `allowed` allows. It records moves in `namespace`,
    /// the server's namespace.
    pub fn new(evaluator: Evaluator, client: Client, namespace: &str, metrics: Arc<Metrics>, allowed: Allowed) -> Self {
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
            found: Mutex::default(),
            left: Mutex::default(),
        }
    }

    /// Makes the reconciler move nothing while other replicas use other settings: they would place Services that are
    /// created meanwhile by those settings.
    pub fn agreeing(self, agreement: watch::Receiver<Agreement>) -> Self {
        Self { agreement: Some(agreement), ..self }
    }

    fn agrees(&self) -> bool {
        let settings = self.evaluator.settings();
        self.agreement.as_ref().is_none_or(|agreement| agreement.borrow().is_on(&settings.hash))
    }

    /// The evaluator that decides where Services belong.
    pub fn evaluator(&self) -> &Evaluator {
        &self.evaluator
    }

    /// Which Services may be moved.
    pub fn allowed(&self) -> Allowed {
        self.allowed
    }

    /// The requests of administrators.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Lists the moves that other leaders left unfinished, and returns their Services. Each move is finished when its
    /// Service is reconciled.
    ///
    /// # Errors
    /// [`RecordError`] if the records can't be listed.
    pub async fn find_left_moves(&self) -> Result<Vec<ServiceKey>, RecordError> {
        let recorded = self.mover.records().list().await?;
        let since = Instant::now();
        let found: BTreeMap<ServiceKey, Left> =
            recorded.into_iter().map(|(id, uid)| (id, Left { uid, since })).collect();
        let ids = found.keys().cloned().collect();
        *self.left() = found;
        Ok(ids)
    }

    fn left(&self) -> MutexGuard<'_, BTreeMap<ServiceKey, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The brakes, locked for the caller.
    pub fn brakes(&self) -> MutexGuard<'_, Brakes> {
        self.brakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many Services that no pool is for lie in each pool.
    pub fn squatters(&self) -> BTreeMap<String, u64> {
        let mut count = BTreeMap::new();
        for pool in self.found().squatters.values().flatten() {
            *count.entry(pool.clone()).or_insert(0) += 1;
        }
        count
    }

    /// Forgets all findings. The next leader makes its own, and so does this process when it leads again.
    pub fn forget(&self) {
        let mut found = self.found();
        *found = Found::default();
        self.count(&found);
    }

    /// The Services that would move if their pool had a free address.
    pub fn waiting_for_addresses(&self) -> Vec<ServiceKey> {
        let found = self.found();
        let waiting = found.misplaced.iter().filter(|(_, (reason, _))| *reason == Reason::PoolFull);
        waiting.map(|(id, _)| id.clone()).collect()
    }

    /// Finishes a move of the Service that another leader left. Then looks at the Service as the stores show it, and
    /// moves or reports it.
    pub async fn reconcile(self: &Arc<Self>, id: &ServiceKey) -> Next {
        let left = self.left().get(id).cloned();
        let Some(left) = left else { return self.reconcile_stored(id).await };
        match self.finish_left(id, &left).await {
            AfterLeft::Reconcile => self.reconcile_stored(id).await,
            AfterLeft::LookAgain(rest) => match self.reconcile_stored(id).await {
                Next::After(pause) => Next::After(pause.min(rest)),
                Next::Change => Next::After(rest),
            },
            AfterLeft::TryAgain(next) => next,
        }
    }

    /// Finishes a move that another leader left unfinished.
    async fn finish_left(&self, id: &ServiceKey, left: &Left) -> AfterLeft {
        if let Some(rest) = self.remaining_pause(id) {
            return AfterLeft::TryAgain(Next::After(rest));
        }
        let recorded = match self.mover.records().get(&left.uid).await {
            Ok(recorded) => recorded,
            Err(error) => {
                tracing::warn!(namespace = id.namespace, name = id.name, %error, "the record of a move can't be read");
                return AfterLeft::TryAgain(Next::After(UNFINISHED));
            }
        };
        if let Some(journal) = recorded {
            let ended = self.finish(&journal).await;
            if ended.is_err() {
                return AfterLeft::TryAgain(self.next_after(id, &ended));
            }
            if matches!(ended, Ok(Outcome::Unmoved(Unmoved::NotBegun))) {
                let rest = RELEASE_ARRIVES.saturating_sub(left.since.elapsed());
                if !rest.is_zero() {
                    return AfterLeft::LookAgain(rest);
                }
                if let Err(error) = self.mover.records().delete(&journal.uid).await {
                    tracing::warn!(namespace = id.namespace, name = id.name, %error, "the record of a move that never began remains");
                }
            }
        }
        self.left().remove(id);
        AfterLeft::Reconcile
    }

    /// Looks at a Service as the stores show it, and moves or reports it.
    async fn reconcile_stored(self: &Arc<Self>, id: &ServiceKey) -> Next {
        let Some(service) = self.stored(id) else {
            self.settled(id);
            // No Service has an empty UID: this only marks the request as considered, so that it is answered.
            self.requests.consider(id, "");
            self.answer_request(id).await;
            return Next::Change;
        };
        match self.look(id, service.clone()).await {
            Ok(Finding::InPlace) => {
                self.settled(id);
                self.answer_wish(id, &service).await
            }
            Ok(Finding::Squats { pools }) => {
                self.settled(id);
                self.found().squatters.insert(id.clone(), pools);
                self.answer_wish(id, &service).await
            }
            Ok(Finding::HalfMoved) => {
                let next = self.half_moved(id, &service).await;
                self.answer_request(id).await;
                next
            }
            Ok(Finding::Misplaced(_)) if !self.agrees() => Next::After(DISAGREEMENT),
            Ok(Finding::Misplaced(misplaced)) => self.misplaced(id, &service, *misplaced).await,
            Err(error) => {
                tracing::error!(namespace = id.namespace, name = id.name, error, "the policy did not answer");
                Next::After(REPORTED)
            }
        }
    }

    /// Handles a Service that looks half moved. If its move is recorded, the move is finished. Otherwise the Service
    /// is left alone, since anybody who may write the Service can make it look half moved.
    async fn half_moved(&self, id: &ServiceKey, service: &Value) -> Next {
        if let Some(rest) = self.remaining_pause(id) {
            return Next::After(rest);
        }
        let live = match self.live(id).await {
            // The stores were behind.
            Ok(None) => return Next::Change,
            Ok(Some(live)) if !step::looks_half_moved(&live) => return Next::Change,
            Ok(Some(live)) => live,
            Err(error) => {
                tracing::warn!(
                    namespace = id.namespace,
                    name = id.name,
                    error = words(&error),
                    "the service can't be read"
                );
                return Next::After(UNFINISHED);
            }
        };
        match self.mover.records().get(text(&live, &["metadata", "uid"])).await {
            Ok(Some(journal)) => {
                let ended = self.finish(&journal).await;
                self.next_after(id, &ended)
            }
            Ok(None) => {
                let outcome = Outcome::Unmoved(Unmoved::NotRecorded);
                let note = outcome.to_string();
                if self.remember(id, Reason::NotRecorded, &note) {
                    tracing::warn!(namespace = id.namespace, name = id.name, %outcome, "move");
                    let uid = text(service, &["metadata", "uid"]);
                    tell(&self.client, id, Told { uid, warning: true, reason: outcome.reason(), note }).await;
                }
                Next::Change
            }
            Err(error) => {
                tracing::warn!(namespace = id.namespace, name = id.name, %error, "the record of a move can't be read");
                Next::After(UNFINISHED)
            }
        }
    }

    async fn look(self: &Arc<Self>, id: &ServiceKey, service: Value) -> Result<Finding, String> {
        let request = self.requests.consider(id, text(&service, &["metadata", "uid"]));
        let this = Arc::clone(self);
        let look = move || {
            misplaced::look(&this.evaluator, &service, this.allowed, request.as_ref())
                .map_err(|error| error.to_string())
        };
        background::run(look).await.map_err(|error| error.to_string())?
    }

    async fn misplaced(self: &Arc<Self>, id: &ServiceKey, service: &Value, misplaced: Misplaced) -> Next {
        if let Some(rest) = self.remaining_pause(id).filter(|_| misplaced.asked_by != AskedBy::Administrator) {
            return Next::After(rest);
        }
        let live = match self.movable(id, &misplaced).await {
            Ok(Movable::Yes(live)) => Ok(live),
            Ok(Movable::Changed) => return Next::After(STALE),
            // This reason is reported before any other, because it does not pass by itself.
            Ok(Movable::SetByHand) => Err((Reason::ByHand, BY_HAND.to_owned())),
            Err(error) => {
                tracing::warn!(
                    namespace = id.namespace,
                    name = id.name,
                    error = words(&error),
                    "the service can't be read"
                );
                return Next::After(UNFINISHED);
            }
        };
        let live = match (live, &misplaced.verdict) {
            (Err((reason, detail)), _) => return self.report_stay(id, service, &misplaced, reason, &detail).await,
            (Ok(_), Verdict::Report { reason, detail }) => {
                return self.report_stay(id, service, &misplaced, *reason, detail).await;
            }
            (Ok(live), Verdict::Move) => live,
        };
        let braked = self.brakes().take(id, misplaced.asked_by, Instant::now());
        if let Err(brake) = braked {
            return self.report_brake(id, service, &misplaced, brake).await;
        }
        // Addresses are held only now, so that a Service that has to wait holds none.
        let (to, evaluation) = match self.hold_targets(service.clone()).await {
            Ok(held) => held,
            Err(detail) => return self.report_stay(id, service, &misplaced, Reason::PoolFull, &detail).await,
        };
        self.remember(id, Reason::Moving, &misplaced.why());
        let ended = self.carry_out(*live, &misplaced, to, evaluation).await;
        let next = self.next_after(id, &ended);
        self.answer_wish(id, service).await;
        next
    }

    /// Reports that a misplaced Service stays where it is, and answers the wish to move it.
    async fn report_stay(
        &self,
        id: &ServiceKey,
        service: &Value,
        misplaced: &Misplaced,
        reason: Reason,
        detail: &str,
    ) -> Next {
        self.report(id, misplaced, reason, detail).await;
        self.answer_wish(id, service).await;
        Next::After(REPORTED)
    }

    /// The recorded journal for the Service with this UID; `None` if no move of it is recorded.
    ///
    /// # Errors
    /// [`RecordError`] if the record can't be read.
    pub async fn recorded(&self, uid: &str) -> Result<Option<Journal>, RecordError> {
        self.mover.records().get(uid).await
    }

    /// Holds addresses for a Service that moves, and returns them with the evaluation that holds them.
    ///
    /// # Errors
    /// Why there are no addresses, as text.
    pub async fn hold_targets(self: &Arc<Self>, service: Value) -> Result<(Vec<IpAddr>, Box<Evaluation>), String> {
        let this = Arc::clone(self);
        let hold = move || misplaced::hold_targets(&this.evaluator, &service);
        let held = background::run(hold).await.map_err(|error| error.to_string())?;
        held.map(|(to, evaluation)| (to, Box::new(evaluation))).map_err(|error: NoTarget| error.to_string())
    }

    /// Reads a misplaced Service from the API server, and tells whether it may be moved.
    ///
    /// # Errors
    /// The error of the API server, if the Service can't be read.
    pub async fn movable(&self, id: &ServiceKey, misplaced: &Misplaced) -> Result<Movable, kube::Error> {
        Ok(match self.live(id).await? {
            Some(live) if text(&live, &["metadata", "uid"]) != misplaced.uid => Movable::Changed,
            Some(live) if addresses(&live) != misplaced.from => Movable::Changed,
            Some(live) if set_by_hand(&live) => Movable::SetByHand,
            Some(live) => Movable::Yes(Box::new(live)),
            None => Movable::Changed,
        })
    }

    /// Moves a misplaced Service to the addresses that `evaluation` holds, and reports the outcome. `live` is the
    /// Service as [`Self::movable`] read it.
    ///
    /// # Errors
    /// [`MoveError`] if the move is not finished. [`Self::finish`] finishes it later.
    pub async fn carry_out(
        &self,
        live: Value,
        misplaced: &Misplaced,
        to: Vec<IpAddr>,
        evaluation: Box<Evaluation>,
    ) -> Result<Outcome, MoveError> {
        evaluation.settle(&to);
        // The Service may have to go back to its old address as long as the move lasts.
        let owner = Owner::new(&misplaced.namespace, &misplaced.name, "");
        misplaced.from.iter().for_each(|address| self.evaluator.note_chosen_by_hand(*address, &owner));
        let targets = Alternatives::new(&self.evaluator, &live);
        let order = Order {
            namespace: misplaced.namespace.clone(),
            name: misplaced.name.clone(),
            uid: misplaced.uid.clone(),
            addresses: to.clone(),
            why: misplaced.why(),
            load_balancers: self.allowed.load_balancers,
        };
        let ended = self.mover.start_from(live, &order, &targets).await;
        // Addresses that the Service got stay held until the stores show them. After a failure all stay held for a
        // while, because the Service might have got any of them.
        let unused: Vec<IpAddr> = match &ended {
            Ok(Outcome::Moved { to: got, .. }) => {
                to.into_iter().chain(misplaced.from.clone()).filter(|address| !got.contains(address)).collect()
            }
            Ok(_) => to.into_iter().chain(misplaced.from.clone()).collect(),
            Err(_) => Vec::new(),
        };
        self.evaluator.ledger().release(&unused);
        self.report_outcome(
            &ServiceKey::new(misplaced.namespace.clone(), misplaced.name.clone()),
            &misplaced.uid,
            &ended,
        )
        .await;
        ended
    }

    /// Finishes a recorded move, and reports the outcome.
    ///
    /// # Errors
    /// As [`Self::carry_out`].
    pub async fn finish(&self, journal: &Journal) -> Result<Outcome, MoveError> {
        let id = ServiceKey::new(journal.namespace.clone(), journal.name.clone());
        let live = self.live(&id).await.ok().flatten().unwrap_or_default();
        let targets = Alternatives::new(&self.evaluator, &misplaced::as_it_was(&live, journal));
        let ended = self.mover.resume(journal, &targets).await;
        self.report_outcome(&id, &journal.uid, &ended).await;
        ended
    }

    async fn report_outcome(&self, id: &ServiceKey, uid: &str, ended: &Result<Outcome, MoveError>) {
        let (namespace, name) = (&id.namespace, &id.name);
        let outcome = match ended {
            Ok(outcome) => outcome,
            Err(error) => {
                self.metrics.moved(MoveResult::Failed);
                tracing::error!(namespace, name, %error, "move failed");
                let told = Told { uid, warning: true, reason: "MoveFailed", note: error.to_string() };
                return tell(&self.client, id, told).await;
            }
        };
        if let Outcome::Unmoved(Unmoved::NotMoving | Unmoved::NotBegun | Unmoved::Gone) = outcome {
            // The stores were behind: another process has finished the move, or the Service was deleted. Neither needs
            // a report.
            return tracing::debug!(namespace, name, %outcome, "nothing to move");
        }
        self.metrics.moved(match outcome {
            Outcome::Moved { .. } => MoveResult::Moved,
            Outcome::Kept { .. } => MoveResult::Kept,
            Outcome::Elsewhere { .. } => MoveResult::Unmanaged,
            Outcome::Overtaken { .. } => MoveResult::UserChanged,
            Outcome::Unmoved(_) => MoveResult::Nothing,
        });
        if outcome.is_warning() {
            tracing::warn!(namespace, name, %outcome, "move");
        } else {
            tracing::info!(namespace, name, %outcome, "move");
        }
        let (warning, reason) = (outcome.is_warning(), outcome.reason());
        tell(&self.client, id, Told { uid, warning, reason, note: outcome.to_string() }).await;
    }

    /// When to look at a Service again after its move ended like this.
    fn next_after(&self, id: &ServiceKey, ended: &Result<Outcome, MoveError>) -> Next {
        match ended {
            Ok(Outcome::Moved { .. } | Outcome::Unmoved(_)) => {
                self.settled(id);
                Next::Change
            }
            Ok(_) => {
                self.settled(id);
                Next::After(REPORTED)
            }
            Err(MoveError::Refused { untouched: true, .. }) => {
                self.after_failure(id);
                Next::After(REPORTED)
            }
            // The Service may have no address now, so the move is tried again until it ends, at growing intervals.
            Err(MoveError::Refused { .. }) => self.after_failure(id),
            // The API server did not answer, which does not count as a failure of the Service.
            Err(_) => Next::After(UNFINISHED),
        }
    }

    /// Counts a refused move of a Service, and tells when to look at the Service again.
    fn after_failure(&self, id: &ServiceKey) -> Next {
        let mut found = self.found();
        let count = found.failures.get(id).map_or(1, |failures| failures.count.saturating_add(1));
        let pause = pause_after(count);
        found.failures.insert(id.clone(), Failures { count, until: Instant::now() + pause });
        Next::After(pause)
    }

    /// How long to wait before a refused move of this Service is tried again; `None` if it may be tried now.
    fn remaining_pause(&self, id: &ServiceKey) -> Option<Duration> {
        let until = self.found().failures.get(id)?.until;
        let rest = until.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    async fn report_brake(&self, id: &ServiceKey, service: &Value, misplaced: &Misplaced, brake: Brake) -> Next {
        let (detail, next) = match brake {
            Brake::Cooldown { until } => {
                return Next::After(until.saturating_duration_since(Instant::now()));
            }
            Brake::Rate { until } => {
                let next = Next::After(until.saturating_duration_since(Instant::now()));
                ("many services were moved in the last minute: it waits for its turn", next)
            }
            Brake::Settings => {
                self.answer_wish(id, service).await;
                ("the settings changed for a large part of the cluster: it waits for `clusterip move`", Next::Change)
            }
        };
        self.report(id, misplaced, Reason::Brake, detail).await;
        next
    }

    /// Reports a Service that stays where it is. The same report is repeated only if somebody asked for the move.
    async fn report(&self, id: &ServiceKey, misplaced: &Misplaced, reason: Reason, detail: &str) {
        let text = format!("{}; it stays: {detail}", misplaced.why());
        if self.remember(id, reason, &text) || misplaced.asked_by != AskedBy::Nobody {
            tracing::warn!(
                namespace = id.namespace,
                name = id.name,
                reason = reason.as_str(),
                detail = text,
                "misplaced"
            );
            let told = Told { uid: &misplaced.uid, warning: true, reason: "AddressMisplaced", note: text };
            tell(&self.client, id, told).await;
        }
    }

    /// Stores why a Service stays. Returns whether that is new.
    fn remember(&self, id: &ServiceKey, reason: Reason, text: &str) -> bool {
        let now = (reason, text.to_owned());
        let mut found = self.found();
        found.squatters.remove(id);
        let before = found.misplaced.insert(id.clone(), now.clone());
        self.count(&found);
        before.is_none_or(|before| before != now)
    }

    /// Notes that a Service is in place, or gone.
    fn settled(&self, id: &ServiceKey) {
        self.brakes().settled(id);
        let mut found = self.found();
        found.squatters.remove(id);
        found.failures.remove(id);
        if found.misplaced.remove(id).is_some() {
            self.count(&found);
        }
    }

    fn count(&self, found: &Found) {
        let of = |reason: &Reason| found.misplaced.values().filter(|(other, _)| other == reason).count() as u64;
        let counts: Vec<(Reason, u64)> = Reason::ALL.iter().map(|reason| (*reason, of(reason))).collect();
        self.metrics.misplaced(&counts);
    }

    /// Answers a wish to move a Service: deletes the request, and removes the annotation from the Service.
    async fn answer_wish(&self, id: &ServiceKey, service: &Value) -> Next {
        self.answer_request(id).await;
        if text(service, &["metadata", "annotations", MOVE_ANNOTATION]) != "now" {
            return Next::Change;
        }
        let Ok(Some(mut live)) = self.live(id).await else { return Next::After(UNFINISHED) };
        let wishes = live.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        let Some(annotations) =
            wishes.filter(|annotations| annotations.get(MOVE_ANNOTATION).is_some_and(|wish| wish == "now"))
        else {
            return Next::Change;
        };
        annotations.remove(MOVE_ANNOTATION);
        let request =
            serde_json::to_vec(&live).map(|body| Request::put(service_path(&id.namespace, &id.name)).body(body));
        let Ok(Ok(request)) = request else { return Next::Change };
        match self.client.request::<Value>(request).await {
            Ok(_) => Next::Change,
            // Another client has changed the Service.
            Err(_) => Next::After(STALE),
        }
    }

    /// Deletes the request to move a Service, if there is one that was considered. `clusterip move` waits for that.
    async fn answer_request(&self, id: &ServiceKey) {
        let Some(request) = self.requests.forget(id) else { return };
        if let Err(error) = requests::withdraw(&self.client, &self.namespace, &request.uid).await {
            tracing::warn!(
                namespace = id.namespace,
                name = id.name,
                error = words(&error),
                "the request for a move was not deleted"
            );
        }
    }

    async fn live(&self, id: &ServiceKey) -> Result<Option<Value>, kube::Error> {
        let request =
            Request::get(service_path(&id.namespace, &id.name)).body(Vec::new()).map_err(kube::Error::HttpError)?;
        match self.client.request::<Value>(request).await {
            Ok(service) => Ok(Some(service)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stored(&self, id: &ServiceKey) -> Option<Value> {
        let snapshot = self.evaluator.stores().snapshot().read().unwrap_or_else(PoisonError::into_inner);
        snapshot.get("v1", "Service", &id.namespace, &id.name)
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How soon a Service is looked at again after this many consecutive failed moves.
fn pause_after(failures: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    UNFINISHED.saturating_mul(doubled).min(MOST_RARELY)
}

#[cfg(test)]
mod tests;
