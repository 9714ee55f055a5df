//! One Service: looked at, and moved where that is right.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use http::Request;
use kube::Client;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use super::affected::Id;
use super::alternatives::Alternatives;
use super::brakes::{Brake, Brakes};
use super::events::{Told, tell};
use super::misplaced::{self, Allowed, Finding, MOVE_ANNOTATION, Misplaced, Verdict};
use super::mover::{MoveError, Mover, Order};
use super::outcome::{Outcome, Unmoved};
use super::ownership::set_by_hand;
use super::replicas::Agreement;
use crate::cluster::failure::words;
use crate::cluster::object::{service_path, text};
use crate::cluster::snapshot::addresses;
use crate::evaluator::{Evaluation, Evaluator};
use crate::metrics::{Metrics, Misplaced as Reason, MoveResult};

/// How soon a Service is looked at again whose move did not end.
const UNFINISHED: Duration = Duration::from_secs(2);
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
    metrics: Arc<Metrics>,
    allowed: Allowed,
    /// What the other replicas go by; none where there are no others.
    agreement: Option<watch::Receiver<Agreement>>,
    /// A look computes: more at once would make none faster, and the webhook's answers slower.
    looks: Arc<Semaphore>,
    brakes: Mutex<Brakes>,
    found: Mutex<Found>,
}

/// What is known of Services that are not where they belong.
#[derive(Default)]
struct Found {
    /// Why each stays, and what was told of it.
    misplaced: BTreeMap<Id, (Reason, String)>,
    /// Those that no pool is for, with the pools that they lie in.
    squatters: BTreeMap<Id, Vec<String>>,
}

impl Reconciler {
    /// Moves by these evaluations, as far as it is allowed.
    pub fn new(evaluator: Evaluator, client: Client, metrics: Arc<Metrics>, allowed: Allowed) -> Self {
        Self {
            mover: Mover::new(client.clone()),
            evaluator,
            client,
            metrics,
            allowed,
            agreement: None,
            looks: Arc::new(Semaphore::new(available_parallelism().map_or(1, usize::from))),
            brakes: Mutex::default(),
            found: Mutex::default(),
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
        let Some(service) = self.stored(id) else {
            self.settled(id);
            return Next::Change;
        };
        match self.look(service.clone()).await {
            Ok(Finding::InPlace) => {
                self.settled(id);
                self.drop_wish(id, &service).await
            }
            Ok(Finding::Squats { pools }) => {
                self.settled(id);
                self.found().squatters.insert(id.clone(), pools);
                self.drop_wish(id, &service).await
            }
            Ok(Finding::HalfMoved) => {
                let ended = self.finish(id, &service).await;
                self.after(id, &ended)
            }
            Ok(Finding::Misplaced(_)) if !self.agrees() => Next::After(DISAGREEMENT),
            Ok(Finding::Misplaced(misplaced)) => self.misplaced(id, &service, *misplaced).await,
            Err(error) => {
                tracing::error!(namespace = id.0, name = id.1, error, "the policy did not answer");
                Next::After(REPORTED)
            }
        }
    }

    async fn look(self: &Arc<Self>, service: Value) -> Result<Finding, String> {
        let turn = Arc::clone(&self.looks).acquire_owned().await.map_err(|error| error.to_string())?;
        let this = Arc::clone(self);
        let look = move || {
            // No address is held, nor claimed, for one that has to wait.
            let allowed = Allowed { any: this.allowed.any && this.agrees(), ..this.allowed };
            let found = misplaced::look(&this.evaluator, &service, allowed).map_err(|error| error.to_string());
            drop(turn);
            found
        };
        tokio::task::spawn_blocking(look).await.map_err(|error| error.to_string())?
    }

    async fn misplaced(self: &Arc<Self>, id: &Id, service: &Value, mut misplaced: Misplaced) -> Next {
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
        let (live, to, evaluation) = match (live, std::mem::replace(&mut misplaced.verdict, Verdict::Taken)) {
            (Err((reason, detail)), _) | (Ok(_), Verdict::Report { reason, detail }) => {
                self.report(id, &misplaced, reason, &detail).await;
                self.drop_wish(id, service).await;
                return Next::After(REPORTED);
            }
            (Ok(live), Verdict::Move { to, evaluation }) => (live, to, evaluation),
            (Ok(_), Verdict::Taken) => return Next::Change,
        };
        let braked = self.brakes().take(id, misplaced.asked_for, Instant::now());
        if let Err(brake) = braked {
            return self.brake(id, &misplaced, brake).await;
        }
        self.remember(id, Reason::Moving, &misplaced.why());
        let ended = self.carry_out(*live, &misplaced, to, evaluation).await;
        let next = self.after(id, &ended);
        self.drop_wish(id, service).await;
        next
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
        let targets = Alternatives::new(&self.evaluator, &live);
        let order = Order {
            namespace: misplaced.namespace.clone(),
            name: misplaced.name.clone(),
            uid: misplaced.uid.clone(),
            addresses: to.clone(),
            why: misplaced.why(),
            load_balancers: self.allowed.load_balancers || misplaced.asked_for,
        };
        let ended = self.mover.start_from(live, &order, &targets).await;
        // What it has got stays held until it is seen; what it might have got after a failure, for a while.
        let unused: Vec<IpAddr> = match &ended {
            Ok(Outcome::Moved { to: got, .. }) => to.into_iter().filter(|address| !got.contains(address)).collect(),
            Ok(_) => to,
            Err(_) => Vec::new(),
        };
        self.evaluator.ledger().release(&unused);
        self.tell_end(&(misplaced.namespace.clone(), misplaced.name.clone()), &misplaced.uid, &ended).await;
        ended
    }

    /// Finishes a move that was begun, by whomever, and tells of it.
    ///
    /// # Errors
    /// As [`Self::carry_out`].
    pub async fn finish(&self, id: &Id, service: &Value) -> Result<Outcome, MoveError> {
        let targets = Alternatives::new(&self.evaluator, service);
        let ended = self.mover.resume(service, &targets).await;
        self.tell_end(id, text(service, &["metadata", "uid"]), &ended).await;
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
        if let Outcome::Unmoved(Unmoved::NotMoving | Unmoved::Gone) = outcome {
            // The stores were behind: somebody finished it, or deleted it. That is no news to anybody.
            return tracing::debug!(namespace, name, %outcome, "nothing to move");
        }
        self.metrics.moved(match outcome {
            Outcome::Moved { .. } => MoveResult::Moved,
            Outcome::Kept { .. } => MoveResult::Kept,
            Outcome::Elsewhere { .. } | Outcome::Rebuilt { .. } => MoveResult::Unmanaged,
            Outcome::Overtaken { .. } => MoveResult::UserChanged,
            Outcome::Cleaned { .. } | Outcome::Unmoved(_) => MoveResult::Nothing,
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
            Err(MoveError::Refused { untouched: true, .. }) => Next::After(REPORTED),
            // It may have no address now: until it has one it is tried again.
            Err(_) => Next::After(UNFINISHED),
        }
    }

    async fn brake(&self, id: &Id, misplaced: &Misplaced, brake: Brake) -> Next {
        let (detail, next) = match brake {
            Brake::Rest { until } => {
                return Next::After(until.saturating_duration_since(Instant::now()));
            }
            Brake::Rate { until } => {
                let next = Next::After(until.saturating_duration_since(Instant::now()));
                ("many services were moved in the last minute: it waits for its turn", next)
            }
            Brake::Settings => {
                ("the settings changed for a large part of the cluster: it waits for `clusterip move`", Next::Change)
            }
        };
        self.report(id, misplaced, Reason::Brake, detail).await;
        next
    }

    /// Tells once of a Service that stays where it is.
    async fn report(&self, id: &Id, misplaced: &Misplaced, reason: Reason, detail: &str) {
        let text = format!("{}; it stays: {detail}", misplaced.why());
        if self.remember(id, reason, &text) || misplaced.asked_for {
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
        if found.misplaced.remove(id).is_some() {
            self.count(&found);
        }
    }

    fn count(&self, found: &Found) {
        let of = |reason: &Reason| found.misplaced.values().filter(|(other, _)| other == reason).count() as u64;
        let counts: Vec<(Reason, u64)> = Reason::ALL.iter().map(|reason| (*reason, of(reason))).collect();
        self.metrics.misplaced(&counts);
    }

    /// Takes the wish to move off a Service: it was heard.
    async fn drop_wish(&self, id: &Id, service: &Value) -> Next {
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
