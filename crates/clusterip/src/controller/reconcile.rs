//! One Service: looked at, and moved where that is right.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::Request;
use kube::Client;
use serde_json::Value;
use tokio::sync::watch;

use super::affected::Id;
use super::alternatives::Alternatives;
use super::brakes::{Brake, Brakes};
use super::events::{Told, tell};
use super::journal::Journal;
use super::misplaced::{self, Allowed, AskedBy, Finding, MOVE_ANNOTATION, Misplaced, NoTarget, Verdict};
use super::mover::{MoveError, Mover, Order};
use super::outcome::{Outcome, Unmoved};
use super::ownership::set_by_hand;
use super::records::RecordError;
use super::replicas::Agreement;
use super::requests::{self, Requests};
use super::step;
use crate::background;
use crate::cluster::failure::words;
use crate::cluster::ledger::Owner;
use crate::cluster::object::{service_path, text};
use crate::cluster::snapshot::addresses;
use crate::evaluator::{Evaluation, Evaluator};
use crate::metrics::{Metrics, Misplaced as Reason, MoveResult};

/// How soon a Service is looked at again whose move did not end, the first time; then twice as late each time …
const UNFINISHED: Duration = Duration::from_secs(2);
/// … up to this.
const MOST_RARELY: Duration = Duration::from_secs(60);
/// How long a request may still be carried out whose sender is gone: longer than an API server works on one.
const RELEASE_ARRIVES: Duration = Duration::from_secs(90);
/// How soon one is looked at again that has changed since the stores saw it.
const STALE: Duration = Duration::from_millis(200);
/// How soon one is looked at again that can't move, for reasons that no change here tells of.
const REPORTED: Duration = Duration::from_secs(60);

/// How soon one is looked at again that waits for the replicas to agree on the settings.
const DISAGREEMENT: Duration = Duration::from_secs(1);

/// When a Service is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// When something changes.
    Change,
    /// After so long.
    After(Duration),
}

/// Why a Service with an address that somebody owns stays.
pub const BY_HAND: &str = "its address was set by hand: `metadata.managedFields` say so";

/// Whether a misplaced Service may be moved.
#[derive(Clone, Debug, PartialEq)]
pub enum Movable {
    /// It may, as it was read.
    Yes(Box<Value>),
    /// It is not any more what the stores showed.
    Changed,
    /// Its address was set by hand.
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
    /// What the other replicas go by; none where there are no others.
    agreement: Option<watch::Receiver<Agreement>>,
    brakes: Mutex<Brakes>,
    found: Mutex<Found>,
    /// Moves that another leader has left, by Service.
    left: Mutex<BTreeMap<Id, Left>>,
}

/// A move that another leader has left.
#[derive(Clone)]
struct Left {
    /// The UID of the Service, by which the record is found.
    uid: String,
    /// When this process has read the record first.
    since: Instant,
}

/// What is left to do about a Service whose move another leader has left.
enum AfterLeft {
    /// The move has ended: the Service is looked at as any other.
    Reconcile,
    /// The move has not begun, but may still begin for so long. The Service is looked at as any other, and once more
    /// after that time.
    LookAgain(Duration),
    /// The move could not be finished.
    TryAgain(Next),
}

/// What is known of Services that are not where they belong.
#[derive(Default)]
struct Found {
    /// Why each stays, and what was told of it.
    misplaced: BTreeMap<Id, (Reason, String)>,
    /// Those that no pool is for, with the pools that they lie in.
    squatters: BTreeMap<Id, Vec<String>>,
    /// How often the move of each has failed, one after the other.
    failures: BTreeMap<Id, Failures>,
}

/// Moves of a Service that failed, one after the other.
struct Failures {
    count: u32,
    /// Before that, whatever its author writes, it is not tried again.
    until: Instant,
}

impl Reconciler {
    /// Moves by these evaluations, as far as it is allowed. Moves are recorded in the server's `namespace`.
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

    /// The same, which moves nothing as long as other replicas go by other settings: they would place what
    /// is created meanwhile by those.
    pub fn agreeing(self, agreement: watch::Receiver<Agreement>) -> Self {
        Self { agreement: Some(agreement), ..self }
    }

    fn agrees(&self) -> bool {
        let settings = self.evaluator.settings();
        self.agreement.as_ref().is_none_or(|agreement| agreement.borrow().is_on(&settings.hash))
    }

    /// The evaluator.
    pub fn evaluator(&self) -> &Evaluator {
        &self.evaluator
    }

    /// What may be moved.
    pub fn allowed(&self) -> Allowed {
        self.allowed
    }

    /// The requests of administrators.
    pub fn requests(&self) -> &Requests {
        &self.requests
    }

    /// Reads which moves other leaders have left, and tells their Services: each is finished when it is reconciled.
    ///
    /// # Errors
    /// [`RecordError`]
    pub async fn find_left_moves(&self) -> Result<Vec<Id>, RecordError> {
        let recorded = self.mover.records().list().await?;
        let since = Instant::now();
        let found: BTreeMap<Id, Left> = recorded.into_iter().map(|(id, uid)| (id, Left { uid, since })).collect();
        let ids = found.keys().cloned().collect();
        *self.left() = found;
        Ok(ids)
    }

    fn left(&self) -> MutexGuard<'_, BTreeMap<Id, Left>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The brakes.
    pub fn brakes(&self) -> MutexGuard<'_, Brakes> {
        self.brakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many Services without a pool lie in each.
    pub fn squatters(&self) -> BTreeMap<String, u64> {
        let mut count = BTreeMap::new();
        for pool in self.found().squatters.values().flatten() {
            *count.entry(pool.clone()).or_insert(0) += 1;
        }
        count
    }

    /// Forgets who is misplaced: whoever leads next finds out by himself, and so does this process when it
    /// leads again.
    pub fn forget(&self) {
        let mut found = self.found();
        *found = Found::default();
        self.count(&found);
    }

    /// The Services that would move if their pool had an address.
    pub fn waiting_for_addresses(&self) -> Vec<Id> {
        let found = self.found();
        let waiting = found.misplaced.iter().filter(|(_, (reason, _))| *reason == Reason::PoolFull);
        waiting.map(|(id, _)| id.clone()).collect()
    }

    /// Looks at a Service as the stores show it, and does what is right.
    pub async fn reconcile(self: &Arc<Self>, id: &Id) -> Next {
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

    /// Finishes a move that another leader has left.
    async fn finish_left(&self, id: &Id, left: &Left) -> AfterLeft {
        if let Some(rest) = self.rest(id) {
            return AfterLeft::TryAgain(Next::After(rest));
        }
        let recorded = match self.mover.records().get(&left.uid).await {
            Ok(recorded) => recorded,
            Err(error) => {
                tracing::warn!(namespace = id.0, name = id.1, %error, "whether a move is to be finished is not known");
                return AfterLeft::TryAgain(Next::After(UNFINISHED));
            }
        };
        if let Some(journal) = recorded {
            let ended = self.finish(&journal).await;
            if ended.is_err() {
                return AfterLeft::TryAgain(self.after(id, &ended));
            }
            if matches!(ended, Ok(Outcome::Unmoved(Unmoved::NotBegun))) {
                let rest = RELEASE_ARRIVES.saturating_sub(left.since.elapsed());
                if !rest.is_zero() {
                    return AfterLeft::LookAgain(rest);
                }
                if let Err(error) = self.mover.records().delete(&journal.uid).await {
                    tracing::warn!(namespace = id.0, name = id.1, %error, "the record of a move that never began stays");
                }
            }
        }
        self.left().remove(id);
        AfterLeft::Reconcile
    }

    /// Looks at a Service as the stores show it, and does what is right.
    async fn reconcile_stored(self: &Arc<Self>, id: &Id) -> Next {
        let Some(service) = self.stored(id) else {
            self.settled(id);
            self.answer_request(id).await;
            return Next::Change;
        };
        match self.look(id, service.clone()).await {
            Ok(Finding::InPlace) => {
                self.settled(id);
                self.heard(id, &service).await
            }
            Ok(Finding::Squats { pools }) => {
                self.settled(id);
                self.found().squatters.insert(id.clone(), pools);
                self.heard(id, &service).await
            }
            Ok(Finding::HalfMoved) => {
                let next = self.half_moved(id, &service).await;
                self.answer_request(id).await;
                next
            }
            Ok(Finding::Misplaced(_)) if !self.agrees() => Next::After(DISAGREEMENT),
            Ok(Finding::Misplaced(misplaced)) => self.misplaced(id, &service, *misplaced).await,
            Err(error) => {
                tracing::error!(namespace = id.0, name = id.1, error, "the policy did not answer");
                Next::After(REPORTED)
            }
        }
    }

    /// A Service looks half moved: its move is finished if it is recorded. Else it is left alone, since anybody who
    /// may write the Service can make it look so.
    async fn half_moved(&self, id: &Id, service: &Value) -> Next {
        if let Some(rest) = self.rest(id) {
            return Next::After(rest);
        }
        let live = match self.live(id).await {
            // The stores were behind.
            Ok(None) => return Next::Change,
            Ok(Some(live)) if !step::looks_half_moved(&live) => return Next::Change,
            Ok(Some(live)) => live,
            Err(error) => {
                tracing::warn!(namespace = id.0, name = id.1, error = words(&error), "the service can't be read");
                return Next::After(UNFINISHED);
            }
        };
        match self.mover.records().get(text(&live, &["metadata", "uid"])).await {
            Ok(Some(journal)) => {
                let ended = self.finish(&journal).await;
                self.after(id, &ended)
            }
            Ok(None) => {
                let outcome = Outcome::Unmoved(Unmoved::NotRecorded);
                let note = outcome.to_string();
                if self.remember(id, Reason::NotRecorded, &note) {
                    tracing::warn!(namespace = id.0, name = id.1, %outcome, "move");
                    let uid = text(service, &["metadata", "uid"]);
                    tell(&self.client, id, Told { uid, warning: true, reason: outcome.reason(), note }).await;
                }
                Next::Change
            }
            Err(error) => {
                tracing::warn!(namespace = id.0, name = id.1, %error, "whether a move is to be finished is not known");
                Next::After(UNFINISHED)
            }
        }
    }

    async fn look(self: &Arc<Self>, id: &Id, service: Value) -> Result<Finding, String> {
        let request = self.requests.of(id, text(&service, &["metadata", "uid"]));
        let this = Arc::clone(self);
        let look = move || {
            misplaced::look(&this.evaluator, &service, this.allowed, request.as_ref())
                .map_err(|error| error.to_string())
        };
        background::run(look).await.map_err(|error| error.to_string())?
    }

    async fn misplaced(self: &Arc<Self>, id: &Id, service: &Value, misplaced: Misplaced) -> Next {
        if let Some(rest) = self.rest(id).filter(|_| misplaced.asked_by != AskedBy::Administrator) {
            return Next::After(rest);
        }
        let live = match self.movable(id, &misplaced).await {
            Ok(Movable::Yes(live)) => Ok(live),
            Ok(Movable::Changed) => return Next::After(STALE),
            // Whatever else speaks against it: this one does not pass.
            Ok(Movable::SetByHand) => Err((Reason::ByHand, BY_HAND.to_owned())),
            Err(error) => {
                tracing::warn!(namespace = id.0, name = id.1, error = words(&error), "the service can't be read");
                return Next::After(UNFINISHED);
            }
        };
        let live = match (live, &misplaced.verdict) {
            (Err((reason, detail)), _) => return self.stays(id, service, &misplaced, reason, &detail).await,
            (Ok(_), Verdict::Report { reason, detail }) => {
                return self.stays(id, service, &misplaced, *reason, detail).await;
            }
            (Ok(live), Verdict::Move) => live,
        };
        let braked = self.brakes().take(id, misplaced.asked_by, Instant::now());
        if let Err(brake) = braked {
            return self.brake(id, service, &misplaced, brake).await;
        }
        // Only now addresses are held: what has to wait holds none.
        let (to, evaluation) = match self.hold_targets(service.clone()).await {
            Ok(held) => held,
            Err(detail) => return self.stays(id, service, &misplaced, Reason::PoolFull, &detail).await,
        };
        self.remember(id, Reason::Moving, &misplaced.why());
        let ended = self.carry_out(*live, &misplaced, to, evaluation).await;
        let next = self.after(id, &ended);
        self.heard(id, service).await;
        next
    }

    /// A misplaced Service stays where it is: that is reported, and the wish to move it was heard.
    async fn stays(&self, id: &Id, service: &Value, misplaced: &Misplaced, reason: Reason, detail: &str) -> Next {
        self.report(id, misplaced, reason, detail).await;
        self.heard(id, service).await;
        Next::After(REPORTED)
    }

    /// The journal of the Service with this UID, if a move of it is recorded.
    ///
    /// # Errors
    /// [`RecordError`]
    pub async fn recorded(&self, uid: &str) -> Result<Option<Journal>, RecordError> {
        self.mover.records().get(uid).await
    }

    /// Holds addresses for a Service that moves, and tells them.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub async fn hold_targets(self: &Arc<Self>, service: Value) -> Result<(Vec<IpAddr>, Box<Evaluation>), String> {
        let this = Arc::clone(self);
        let hold = move || misplaced::hold_targets(&this.evaluator, &service);
        let held = background::run(hold).await.map_err(|error| error.to_string())?;
        held.map(|(to, evaluation)| (to, Box::new(evaluation))).map_err(|error: NoTarget| error.to_string())
    }

    /// Whether a misplaced Service may be moved, as the API server has it now.
    ///
    /// # Errors
    /// Where it can't be read.
    pub async fn movable(&self, id: &Id, misplaced: &Misplaced) -> Result<Movable, kube::Error> {
        Ok(match self.live(id).await? {
            Some(live) if text(&live, &["metadata", "uid"]) != misplaced.uid => Movable::Changed,
            Some(live) if addresses(&live) != misplaced.from => Movable::Changed,
            Some(live) if set_by_hand(&live) => Movable::SetByHand,
            Some(live) => Movable::Yes(Box::new(live)),
            None => Movable::Changed,
        })
    }

    /// Moves a misplaced Service to the addresses that `evaluation` holds, and tells of it. `live` is the
    /// Service as [`Self::movable`] has read it.
    ///
    /// # Errors
    /// Where the move could not be ended; [`Self::finish`] does, later.
    pub async fn carry_out(
        &self,
        live: Value,
        misplaced: &Misplaced,
        to: Vec<IpAddr>,
        evaluation: Box<Evaluation>,
    ) -> Result<Outcome, MoveError> {
        evaluation.settle(&to);
        // The old address is its way back, as long as the move lasts.
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
        // What it has got stays held until it is seen; what it might have got after a failure, for a while.
        let unused: Vec<IpAddr> = match &ended {
            Ok(Outcome::Moved { to: got, .. }) => {
                to.into_iter().chain(misplaced.from.clone()).filter(|address| !got.contains(address)).collect()
            }
            Ok(_) => to.into_iter().chain(misplaced.from.clone()).collect(),
            Err(_) => Vec::new(),
        };
        self.evaluator.ledger().release(&unused);
        self.tell_end(&(misplaced.namespace.clone(), misplaced.name.clone()), &misplaced.uid, &ended).await;
        ended
    }

    /// Finishes a recorded move, and tells of it.
    ///
    /// # Errors
    /// As [`Self::carry_out`].
    pub async fn finish(&self, journal: &Journal) -> Result<Outcome, MoveError> {
        let id = (journal.namespace.clone(), journal.name.clone());
        let live = self.live(&id).await.ok().flatten().unwrap_or_default();
        let targets = Alternatives::new(&self.evaluator, &misplaced::as_it_was(&live, journal));
        let ended = self.mover.resume(journal, &targets).await;
        self.tell_end(&id, &journal.uid, &ended).await;
        ended
    }

    async fn tell_end(&self, id: &Id, uid: &str, ended: &Result<Outcome, MoveError>) {
        let (namespace, name) = (&id.0, &id.1);
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
            // The stores were behind: somebody finished it, or deleted it. That is no news to anybody.
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

    /// What is left to do after a move.
    fn after(&self, id: &Id, ended: &Result<Outcome, MoveError>) -> Next {
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
            // It may have no address now: until it has one it is tried again, ever more rarely.
            Err(MoveError::Refused { .. }) => self.after_failure(id),
            // The API server did not answer: that is not the Service's fault.
            Err(_) => Next::After(UNFINISHED),
        }
    }

    /// When a Service is looked at again whose move was refused once more.
    fn after_failure(&self, id: &Id) -> Next {
        let mut found = self.found();
        let count = found.failures.get(id).map_or(1, |failures| failures.count.saturating_add(1));
        let pause = pause_after(count);
        found.failures.insert(id.clone(), Failures { count, until: Instant::now() + pause });
        Next::After(pause)
    }

    /// How long the move of a Service is not tried again after it was refused.
    fn rest(&self, id: &Id) -> Option<Duration> {
        let until = self.found().failures.get(id)?.until;
        let rest = until.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }

    async fn brake(&self, id: &Id, service: &Value, misplaced: &Misplaced, brake: Brake) -> Next {
        let (detail, next) = match brake {
            Brake::Rest { until } => {
                return Next::After(until.saturating_duration_since(Instant::now()));
            }
            Brake::Rate { until } => {
                let next = Next::After(until.saturating_duration_since(Instant::now()));
                ("many services were moved in the last minute: it waits for its turn", next)
            }
            Brake::Settings => {
                self.heard(id, service).await;
                ("the settings changed for a large part of the cluster: it waits for `clusterip move`", Next::Change)
            }
        };
        self.report(id, misplaced, Reason::Brake, detail).await;
        next
    }

    /// Tells once of a Service that stays where it is.
    async fn report(&self, id: &Id, misplaced: &Misplaced, reason: Reason, detail: &str) {
        let text = format!("{}; it stays: {detail}", misplaced.why());
        if self.remember(id, reason, &text) || misplaced.asked_by != AskedBy::Nobody {
            tracing::warn!(namespace = id.0, name = id.1, reason = reason.as_str(), detail = text, "misplaced");
            let told = Told { uid: &misplaced.uid, warning: true, reason: "AddressMisplaced", note: text };
            tell(&self.client, id, told).await;
        }
    }

    /// Whether this is news.
    fn remember(&self, id: &Id, reason: Reason, text: &str) -> bool {
        let now = (reason, text.to_owned());
        let mut found = self.found();
        found.squatters.remove(id);
        let before = found.misplaced.insert(id.clone(), now.clone());
        self.count(&found);
        before.is_none_or(|before| before != now)
    }

    /// It is where it belongs, or gone.
    fn settled(&self, id: &Id) {
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

    /// What was asked of a Service is dealt with: the request is deleted, and the wish taken off the Service.
    async fn heard(&self, id: &Id, service: &Value) -> Next {
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
        let request = serde_json::to_vec(&live).map(|body| Request::put(service_path(&id.0, &id.1)).body(body));
        let Ok(Ok(request)) = request else { return Next::Change };
        match self.client.request::<Value>(request).await {
            Ok(_) => Next::Change,
            // Somebody else wrote it.
            Err(_) => Next::After(STALE),
        }
    }

    /// Deletes the request for a Service, if there is one. Its author waits for that.
    async fn answer_request(&self, id: &Id) {
        let Some(request) = self.requests.forget(id) else { return };
        if let Err(error) = requests::withdraw(&self.client, &self.namespace, &request.uid).await {
            tracing::warn!(namespace = id.0, name = id.1, error = words(&error), "a request was not deleted");
        }
    }

    async fn live(&self, id: &Id) -> Result<Option<Value>, kube::Error> {
        let request = Request::get(service_path(&id.0, &id.1)).body(Vec::new()).map_err(kube::Error::HttpError)?;
        match self.client.request::<Value>(request).await {
            Ok(service) => Ok(Some(service)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn stored(&self, id: &Id) -> Option<Value> {
        let snapshot = self.evaluator.stores().snapshot().read().unwrap_or_else(PoisonError::into_inner);
        snapshot.get("v1", "Service", &id.0, &id.1)
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How soon a Service is looked at again whose move has failed so often, one time after the other.
fn pause_after(failures: u32) -> Duration {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    UNFINISHED.saturating_mul(doubled).min(MOST_RARELY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_and_again_is_tried_ever_more_rarely() {
        let rows = [(1, 2), (2, 4), (3, 8), (5, 32), (6, 60), (33, 60), (u32::MAX, 60)];
        for (failures, seconds) in rows {
            assert_eq!(pause_after(failures), Duration::from_secs(seconds), "after {failures} failures");
        }
    }
}
