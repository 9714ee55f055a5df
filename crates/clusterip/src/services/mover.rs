//! Gives a Service another address without deleting it.
//!
//! # Expected flow
//! A `ClusterIP` can't be changed, but a Service without one may be given any. [`Mover::start`] turns the Service
//! into an `ExternalName` for some milliseconds, and then gives it everything back, at the new address. Before that
//! it writes a record of all that is needed to finish into the server's namespace. [`step`] and
//! [`seamless`](clusterip_moves::seamless) define the steps.
//!
//! # Guarantees
//! - The Service is never deleted or created. Its UID stays, and so does everything that depends on it.
//! - Nothing is changed if the API server refuses the first write, which is tried by a dry run.
//! - Unless the order says so, no plain move begins while an endpoint can be reached at the present addresses. The API
//!   server is asked while the record is written, at most a second before the first write to the Service.
//! - A move may be cut off anywhere. [`Mover::resume`] finishes it from the record. It may be called again, and does
//!   nothing if nothing is left to do. Before it restores a new address or an external address, it asks the policy.
//! - Nothing is written to a Service without a record of its move, whatever the Service itself says.
//! - Changes that others make meanwhile are kept. Each write names the version that it was made from.
//! - A move ends: after [`Limits::total`] with an error, and the record stays for [`Mover::resume`].
//! - A seamless move whose new address the API server refuses is undone, and begins again with the next address.
//! - A seamless move returns when the Service has its new address. Its record stays until [`Mover::resume`] has deleted
//!   the last temporary Service.
//! - [`Mover::unfinished`] has each move whose record may exist, and says when to resume it, also if its Service is gone.
//!
//! # Caveats
//! - Another Service may take the old address, the new address or a node port meanwhile. Then the mover takes the
//!   next address that [`Targets`] has, otherwise the old one, otherwise one that no pool contains. The API server
//!   picks one only where the settings isolate no Services, because it may pick one of any pool. If nothing is left, the
//!   record stays, and the move is tried again. A node port is waited for, and then replaced. The [`Outcome`] says so.
//! - JSON is sent back as it came. A typed client would drop the fields that it does not know.
//!
//! # Modules
//! This module begins moves, and carries out the steps on the Service itself. `seamless_run` carries out those on
//! temporary Services, and `change_windows` decides when, because several Services may move at once. `records` stores
//! the journals, and [`targets`] chooses target addresses.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::connect::request_at_most;
use clusterip_cluster::object::service_path;
use clusterip_cluster::snapshot::addresses;
use clusterip_core::annotations::looks_half_moved;
use clusterip_core::service::{MANAGER, may_be_set_by_hand};
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::journal::{Journal, Plan, SeamlessOptions};
use clusterip_moves::outcome::{Outcome, Refusal, Size, Unmoved, shown};
use clusterip_moves::seamless::Progress;
use clusterip_moves::step::{self, Step};
use futures::future;
use http::{Method, Request};
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

mod change_windows;
pub(crate) mod records;
mod seamless_run;
pub mod targets;

use self::change_windows::ChangeWindows;
use self::records::{Records, UnfinishedMoves, refusal_of, text_of};
use self::targets::{Attempt, MAX_TARGETS, Targets, next_target, same_families};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// A record may take several requests. If the answer about the endpoints is older then, they are listed again.
const MAX_ANSWER_AGE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// For how many seconds after a move was recorded the status of a load balancer is restored. Later its addresses may
/// belong to another load balancer, and then only its controller may write the status.
const STATUS_LASTS: i64 = 120;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveOrder {
    pub id: ServiceKey,
    /// The UID of the Service. Another Service of the same name is not moved.
    pub uid: String,
    /// All addresses that the Service is to have, primary first, in its order of families. A family that stays has
    /// its old address here.
    pub addresses: Vec<IpAddr>,
    pub why: String,
    /// The new value of the annotation [`REASON_ANNOTATION`](clusterip_core::annotations::REASON_ANNOTATION), if the
    /// Service has the annotation; `None` removes it.
    pub reason: Option<String>,
    /// Whether to move a Service of type `LoadBalancer`, whose cloud controller may tear its load balancer down.
    pub load_balancers: bool,
    /// `None` for a plain move.
    pub seamless: Option<SeamlessOptions>,
    /// Whether to move the Service plainly although its endpoints can be reached at its present addresses.
    pub interrupts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub request: Duration,
    /// The limit of the whole move. After that, the move is left to the next resumption.
    pub total: Duration,
    /// How long a node port that is taken is waited for, while the Service has no address.
    pub ports: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(10), total: Duration::from_secs(60), ports: Duration::from_secs(5) }
    }
}

/// A move that is not finished. If it is recorded by now, [`Mover::resume`] finishes it. Contains the full message.
#[derive(Debug, Error)]
pub enum MoveError {
    /// The order can't be carried out, or its first step was refused. The Service is unchanged.
    #[error("{0}")]
    Untouched(String),
    /// The API server, or a policy, refused a step, or there is no usable record.
    #[error("{0}")]
    Refused(String),
    /// The API server did not answer, or answered with errors that pass. The Service is not the cause then.
    #[error("{0}")]
    Unfinished(String),
    /// The Service, its record, or another object of its move, is larger than those that this mover reads.
    #[error("{0}")]
    TooLarge(String),
}

/// A step of a run, by its name in messages: if it is refused, the move is [`MoveError::Untouched`], or has begun and is
/// [`MoveError::Refused`].
#[derive(Clone, Copy)]
enum RunStep {
    Untouched(&'static str),
    Changing(&'static str),
}

impl MoveError {
    /// The record of the move of this Service can't be read or deleted.
    pub(crate) fn of_record(service: &str, refusal: &Refusal) -> Self {
        let message = format!("{service}: {refusal}");
        match refusal {
            Refusal::Trouble(_) => Self::Unfinished(message),
            Refusal::TooLarge(_) => Self::TooLarge(message),
            _ => Self::Refused(message),
        }
    }
}

/// Moves Services. All clones share the unfinished moves.
#[derive(Clone)]
pub struct Mover {
    client: Client,
    pub records: Records,
    pub limits: Limits,
    size: Size,
    pub unfinished: UnfinishedMoves,
    change_windows: ChangeWindows,
}

impl Mover {
    /// A mover which records its moves in `namespace`, the server's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        let (records, unfinished) = (Records::new(client.clone(), namespace), UnfinishedMoves::default());
        let (limits, size, change_windows) = (Limits::default(), Size::Large, ChangeWindows::default());
        Self { client, records, limits, size, unfinished, change_windows }
    }

    #[must_use]
    pub(crate) fn up_to(&self, size: Size) -> Self {
        Self { size, ..self.clone() }
    }

    /// Moves a Service. If a move of the Service is recorded already, that move is finished instead. `read` is the whole
    /// object of the API server, if it was just read. If it was changed since, the first write is refused, and the
    /// Service is read again.
    pub async fn start(
        &self,
        order: &MoveOrder,
        read: Option<Value>,
        targets: &impl Targets,
    ) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &order.id, &order.uid, targets);
        let service = match read {
            Some(service) => run.same_service(service).ok_or_else(|| Unmoved::Gone.into()),
            None => run.read_to_begin().await,
        };
        match service {
            Ok(service) => run.begin(service, order).await,
            Err(Stop(ended)) => ended,
        }
    }

    /// Finishes a recorded move from wherever it was cut off, and deletes its record.
    pub async fn resume(&self, journal: &Journal, targets: &impl Targets) -> Result<Outcome, MoveError> {
        let id = ServiceKey::new(journal.namespace.as_str(), journal.name.as_str());
        self.unfinished.add(&journal.uid, &id, false);
        let mut run = Run::new(self, &id, &journal.uid, targets);
        if let Some(plan) = &journal.seamless {
            return run.finish_seamless(journal, plan).await;
        }
        match run.read(RunStep::Untouched("read")).await? {
            Some(service) => run.finish_plain(service, journal).await,
            None => run.discard().await.map(|()| Outcome::Unmoved(Unmoved::Gone)),
        }
    }
}

/// How a run ends before the Service has other addresses.
struct Stop(Result<Outcome, MoveError>);

impl From<MoveError> for Stop {
    fn from(error: MoveError) -> Self {
        Self(Err(error))
    }
}

impl From<Unmoved> for Stop {
    fn from(unmoved: Unmoved) -> Self {
        Self(Ok(Outcome::Unmoved(unmoved)))
    }
}

/// One run of a move, from reading the Service to its outcome.
struct Run<'m, T> {
    mover: &'m Mover,
    id: &'m ServiceKey,
    uid: &'m str,
    targets: &'m T,
    since: Instant,
    /// How long the run may take. After that, it ends with an error at the next trouble.
    limit: Duration,
    pause: Duration,
    /// The addresses that this run has ordered; `None` in a run that finishes what another one began.
    ordered: Option<Vec<IpAddr>>,
    attempt: Option<Attempt>,
    recorded: Option<Arc<Journal>>,
    /// The UID of the record that this run has created.
    record_uid: Option<String>,
    /// The answer if the Service of a seamless move was last too large to read.
    unreadable: Option<Refusal>,
    progress: Progress,
    /// The new addresses that the API server has refused to seamless moves, and a text about each undone move.
    refused: Vec<IpAddr>,
    refusals: Vec<String>,
    status_is_restored: bool,
    /// Whether the field owners stay as they are.
    keeps_owners: bool,
    /// How the move ends if no step follows.
    reached: Option<Outcome>,
}

impl<'m, T: Targets> Run<'m, T> {
    fn new(mover: &'m Mover, id: &'m ServiceKey, uid: &'m str, targets: &'m T) -> Self {
        Self {
            mover,
            id,
            uid,
            targets,
            since: Instant::now(),
            limit: mover.limits.total,
            pause: FIRST_PAUSE,
            ordered: None,
            attempt: None,
            recorded: None,
            record_uid: None,
            unreadable: None,
            progress: Progress::default(),
            refused: Vec::new(),
            refusals: Vec::new(),
            status_is_restored: false,
            keeps_owners: false,
            reached: None,
        }
    }

    fn label(&self) -> String {
        format!("Service {}", self.id)
    }

    fn path(&self) -> String {
        service_path(&self.id.namespace, &self.id.name)
    }

    /// The attempt to give the Service an address that is under way, or otherwise the first one.
    async fn attempt(&mut self, journal: &Journal) -> &mut Attempt {
        match &mut self.attempt {
            Some(attempt) => attempt,
            none => {
                let first = Attempt::first(journal, self.ordered.as_deref(), self.targets);
                none.insert(first.await)
            }
        }
    }

    /// Reads the stored Service; `None` if it is gone, or if another Service has its name.
    async fn read(&mut self, step: RunStep) -> Result<Option<Value>, MoveError> {
        loop {
            match self.get(&self.path()).await {
                Ok(found) => return Ok(found.and_then(|service| self.same_service(service))),
                Err(refusal) => self.wait(step, &refusal).await?,
            }
        }
    }

    /// Reads a Service whose move has not begun. It must not be larger than those that move, as the API server sends it.
    async fn read_to_begin(&mut self) -> Result<Value, Stop> {
        let text = loop {
            match self.send(Method::GET, &self.path(), Vec::new()).await {
                Ok(text) => break text,
                Err(Refusal::Gone) => return Err(Unmoved::Gone.into()),
                Err(refusal) => self.wait(RunStep::Untouched("read"), &refusal).await?,
            }
        };
        let service = parsed(&text).map_err(|refusal| MoveError::Unfinished(format!("{}: {refusal}", self.label())))?;
        match self.same_service(service) {
            None => Err(Unmoved::Gone.into()),
            Some(service) if may_begin(&service, text.len(), self.mover.size) => Ok(service),
            Some(_) => Err(Unmoved::TooLarge.into()),
        }
    }

    /// The Service, unless it is another one of the same name.
    fn same_service(&self, service: Value) -> Option<Value> {
        let uid = service.pointer("/metadata/uid").and_then(Value::as_str);
        (uid == Some(self.uid)).then_some(service)
    }

    /// Waits before the next try. Gives up if the request was refused, or if the time is over.
    async fn wait(&mut self, step: RunStep, refusal: &Refusal) -> Result<(), MoveError> {
        let (RunStep::Untouched(name) | RunStep::Changing(name)) = step;
        let (service, limit) = (self.label(), self.limit);
        let not_finished = format!("{service}: the step {name:?} was not finished");
        match refusal {
            Refusal::Refused(_) | Refusal::Address { .. } | Refusal::Port { .. } => {
                let refused = format!("{service} can't be moved: the step {name:?} was refused: {refusal}");
                return Err(match step {
                    RunStep::Untouched(_) => MoveError::Untouched(format!("{refused}; nothing was changed")),
                    RunStep::Changing(_) => MoveError::Refused(format!("{refused}; it is tried again")),
                });
            }
            Refusal::TooLarge(_) => return Err(MoveError::TooLarge(format!("{not_finished}: {refusal}"))),
            _ if self.since.elapsed() + self.pause > limit => {
                let limit = limit.as_secs_f32();
                return Err(MoveError::Unfinished(format!("{not_finished} within {limit} s: {refusal}")));
            }
            _ => {}
        }
        tracing::debug!(service, step = name, reason = %refusal, "trying again");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(MAX_PAUSE);
        Ok(())
    }

    async fn get(&self, path: &str) -> Result<Option<Value>, Refusal> {
        match self.request(Method::GET, path, Vec::new()).await {
            Ok(object) => Ok(Some(object)),
            Err(Refusal::Gone) => Ok(None),
            Err(refusal) => Err(refusal),
        }
    }

    async fn put(&self, suffix: &str, service: Vec<u8>) -> Result<Value, Refusal> {
        let separator = if suffix.contains('?') { '&' } else { '?' };
        let path = format!("{}{suffix}{separator}fieldManager={MANAGER}", self.path());
        self.request(Method::PUT, &path, service).await
    }

    async fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value, Refusal> {
        parsed(&self.send(method, path, body).await?)
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Vec<u8>, Refusal> {
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
        let request = request.map_err(|error| Refusal::Refused(error.to_string()))?;
        let (limit, most) = (self.mover.limits.request, self.mover.size.most_read());
        match timeout(limit, request_at_most(&self.mover.client, request, most)).await {
            Ok(answer) => answer.map_err(|error| refusal_of(&error)),
            Err(_) => Err(Refusal::Trouble(format!("no answer within {} s", limit.as_secs_f32()))),
        }
    }

    /// Whether no request of this move may still be carried out.
    fn requests_ended(&self) -> bool {
        self.mover.unfinished.until_requests_end(self.uid).is_zero()
    }

    /// Leaves the rest of the move to [`Mover::resume`], after the last request has ended.
    fn rest_until_requests_end(&self) {
        self.mover.unfinished.go_on_after(self.uid, self.mover.unfinished.until_requests_end(self.uid));
    }

    /// Notes that a request may still be carried out, if this was its answer.
    fn note_unanswered(&self, refusal: &Refusal) {
        if refusal.is_uncertain() {
            self.mover.unfinished.unanswered(self.uid);
        }
    }

    /// Deletes the record of a move that has ended. If that fails, the next resumption deletes it.
    async fn discard(&mut self) -> Result<(), MoveError> {
        self.mover.records.delete(self.uid, self.record_uid.take()).await.map_err(|error| {
            tracing::warn!(service = %self.label(), %error, "the record of a finished move was not deleted");
            MoveError::of_record(&self.label(), &error)
        })?;
        self.mover.unfinished.has_no_record(self.uid);
        Ok(())
    }

    async fn record(&self) -> Result<Option<Journal>, MoveError> {
        let found = self.mover.records.get(self.uid, self.mover.size).await;
        found.map_err(|reason| MoveError::of_record(&self.label(), &reason))
    }
}

impl<T: Targets> Run<'_, T> {
    /// Begins a move of the Service that was read, and finishes it.
    async fn begin(&mut self, service: Value, order: &MoveOrder) -> Result<Outcome, MoveError> {
        let ended = self.move_from(service, order).await.map_or_else(|Stop(ended)| ended, Ok);
        // A record that outlives its move could be replayed. But if the API server did not answer a release, the
        // release may still be carried out and needs the record. Then the next resumption deletes it.
        if let Ok(Outcome::Unmoved(_)) = &ended
            && self.recorded.is_some()
            && self.requests_ended()
        {
            let _ = self.discard().await;
        }
        ended
    }

    async fn move_from(&mut self, mut service: Value, order: &MoveOrder) -> Result<Outcome, Stop> {
        let mut to = order.addresses.clone();
        let was_by_hand = may_be_set_by_hand(&service);
        loop {
            if looks_half_moved(&service) {
                return Ok(self.finish_recorded(service).await?);
            }
            if let Some(unmoved) = step::unmovable(&service, &to, order.load_balancers) {
                return Err(unmoved.into());
            }
            let from = addresses(&service);
            if !same_families(&from, &to) {
                return Err(Stop(Err(MoveError::Untouched(format!(
                    "{} at {} can't be moved to {}: one address for each of its families is needed, in their order",
                    self.label(),
                    shown(&from),
                    shown(&to)
                )))));
            }
            let plan = self.plan_method(&service, &to, order).await?;
            self.ordered = Some(to.clone());
            if let Some(ended) = self.release(service, &to, order, plan).await? {
                match self.another_target(ended, &to, &from).await {
                    Ok(another) => to = another,
                    Err(ended) => return Ok(ended),
                }
            }
            service = self.read_to_begin().await?;
            // A user may have set the address by hand since the Service was looked at.
            if may_be_set_by_hand(&service) && !was_by_hand {
                return Err(Unmoved::Unfit("its address was set by hand meanwhile").into());
            }
        }
    }

    /// The next target, if a seamless move has `ended` because the API server has refused its target `to`. The outcome,
    /// if the move has ended otherwise or there is no other target. Refused targets stay reserved, so the policy does
    /// not choose them again.
    async fn another_target(&mut self, ended: Outcome, to: &[IpAddr], from: &[IpAddr]) -> Result<Vec<IpAddr>, Outcome> {
        let Outcome::Unmoved(Unmoved::NotPrepared { reason }) = &ended else { return Err(ended) };
        // As long as the record of the undone move may exist, no other move of the Service can begin.
        if !self.progress.new_was_refused || self.mover.unfinished.of(self.id).is_some() {
            return Err(ended);
        }
        tracing::debug!(service = self.label(), reason, "the new address of a seamless move was refused");
        self.refusals.push(format!("{} is not available: {reason}", shown(to)));
        self.refused.extend(to);
        (self.progress, self.attempt) = (Progress::default(), None);
        let another = match self.refusals.len() < MAX_TARGETS {
            true => next_target(self.targets, &self.refused, from).await,
            false => None,
        };
        another.ok_or_else(|| Outcome::Unmoved(Unmoved::NotPrepared { reason: self.refusals.join("; ") }))
    }

    /// Finishes a move that looks begun, if it is recorded.
    async fn finish_recorded(&mut self, service: Value) -> Result<Outcome, MoveError> {
        let recorded = match self.recorded.take() {
            Some(journal) => Some(journal),
            None => {
                // Addresses that another run ordered are checked by the policy before they are restored.
                self.ordered = None;
                self.record().await?.map(Arc::new)
            }
        };
        let Some(journal) = recorded else { return Ok(Outcome::Unmoved(Unmoved::NotRecorded)) };
        self.mover.unfinished.add(self.uid, self.id, false);
        match &journal.seamless {
            Some(plan) => self.finish_seamless(&journal, plan).await,
            None => self.finish_plain(service, &journal).await,
        }
    }

    /// Records the move, and carries it out. `None` if the Service was changed meanwhile, and must be read again.
    async fn release(
        &mut self,
        service: Value,
        to: &[IpAddr],
        order: &MoveOrder,
        plan: Option<Plan>,
    ) -> Result<Option<Outcome>, Stop> {
        let mut journal = step::beginning(&service, to, &order.why);
        // The reason of the order is about its own addresses.
        journal.reason = order.reason.clone().filter(|_| to == order.addresses);
        journal.seamless = plan;
        let body = text_of(step::released(&service, &journal));
        // Each copy of the Service that is kept during a request counts for all Services that move at once.
        drop(service);
        match self.put("?dryRun=All", body.clone()).await {
            Ok(tried) => {
                journal.recorded_at = Timestamp::now().as_second();
                journal.released = tried.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
            }
            Err(refusal) => return self.unreleased(&refusal).await,
        }
        let journal = Arc::new(journal);
        // The endpoints may have become ready since the Service was looked at. The API server may take longer to list
        // the EndpointSlices than to store the record, so both requests are sent at once.
        let asks_for_endpoints = !order.interrupts && journal.seamless.is_none();
        let mut reader = Run { since: self.since, ..Run::new(self.mover, self.id, self.uid, self.targets) };
        let reachable = async {
            let reachable = if asks_for_endpoints { reader.is_reachable().await } else { Ok(false) };
            (reachable, Instant::now())
        };
        let (recorded, (reachable, asked)) = future::join(self.record_journal(&journal), reachable).await;
        if let Err(refusal) = recorded {
            return self.unreleased(&refusal).await;
        }
        if let Some(plan) = &journal.seamless {
            self.progress = Progress::of_first_run();
            return Ok(Some(self.finish_seamless(&journal, plan).await?));
        }
        let mut reachable = reachable?;
        if asks_for_endpoints && !reachable && asked.elapsed() > MAX_ANSWER_AGE {
            reachable = self.is_reachable().await?;
        }
        if reachable {
            return Err(Unmoved::Reachable.into());
        }
        match self.put("", body).await {
            Ok(released) => Ok(Some(self.finish_plain(released, &journal).await?)),
            Err(refusal) => {
                self.note_unanswered(&refusal);
                self.unreleased(&refusal).await
            }
        }
    }

    /// Handles a release that failed, or may have failed. The record of a move that will not begin is deleted.
    async fn unreleased(&mut self, refusal: &Refusal) -> Result<Option<Outcome>, Stop> {
        if matches!(refusal, Refusal::Refused(_)) && self.requests_ended() && self.recorded.take().is_some() {
            let _ = self.discard().await;
        }
        self.wait(RunStep::Untouched("release"), refusal).await?;
        Ok(None)
    }

    /// Records the journal. Replaces a record that an earlier try of this run, or another run, wrote for this Service
    /// without beginning the move.
    async fn record_journal(&mut self, journal: &Arc<Journal>) -> Result<(), Refusal> {
        self.mover.unfinished.add(self.uid, self.id, true);
        let mut kept = match &self.recorded {
            Some(recorded) => Some(Arc::clone(recorded)),
            None => match self.create_record(journal).await {
                Err(Refusal::Conflict) => {
                    let found = self.record().await.map_err(|error| Refusal::Trouble(error.to_string()))?;
                    // Its record is needed until its last temporary Service is deleted.
                    if found.as_ref().is_some_and(|found| found.seamless.is_some()) {
                        let reason =
                            "an earlier seamless move of it has not ended: wait for the end of its grace period";
                        return Err(Refusal::Refused(reason.to_owned()));
                    }
                    found.map(Arc::new)
                }
                created => created.map(|()| Some(Arc::clone(journal)))?,
            },
        };
        // As long as the Service is unchanged, an earlier request to release may still arrive, and the record that it
        // needs serves as well as a new one. A record of an older state of the Service is useless.
        let serves = |kept: &Journal| {
            kept.resource_version == journal.resource_version
                && kept.seamless == journal.seamless
                && (journal.seamless.is_none() || kept.to == journal.to)
        };
        if kept.as_deref().is_some_and(|kept| !serves(kept)) {
            let deleted = self.mover.records.delete(self.uid, self.record_uid.take()).await;
            deleted.map_err(|error| Refusal::Trouble(error.to_string()))?;
            kept = None;
        }
        if kept.is_none() {
            self.create_record(journal).await?;
        }
        self.recorded = Some(Arc::clone(journal));
        Ok(())
    }

    /// Creates a record. The answer contains the record. One that is too large to read could not finish its move, so it
    /// is deleted before the move begins.
    async fn create_record(&mut self, journal: &Journal) -> Result<(), Refusal> {
        let (path, record) = self.mover.records.creation(journal);
        let refusal = match self.send(Method::POST, &path, record).await {
            Ok(created) => {
                self.record_uid = Records::uid_of(&created);
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        if matches!(refusal, Refusal::TooLarge(_)) {
            let _ = self.discard().await;
        } else {
            self.note_unanswered(&refusal);
        }
        Err(refusal)
    }

    /// Gives the Service an address, and returns it as the API server stored it; `None` if this attempt is refused, and
    /// there is another one to make. The refusal is an error if there is no other attempt to make now.
    async fn assign(&mut self, service: &Value, journal: &Journal) -> Result<Option<Value>, Refusal> {
        let (resumed, targets, patience) = (self.ordered.is_none(), self.targets, self.mover.limits.ports);
        let attempt = self.attempt(journal).await;
        let body = step::assigned(service, journal, &attempt.target, &attempt.without);
        if resumed
            && let Some(bare) = step::without_external(&body)
            && let Err(reason) = targets.check_update(&bare, &body).await
        {
            // The policy refused its external addresses.
            attempt.without.external = true;
            attempt.notes.push(format!("its external addresses were not restored: {reason}"));
            return Ok(None);
        }
        let refusal = match self.put("", text_of(body)).await {
            Ok(written) => return Ok(Some(written)),
            Err(refusal) => refusal,
        };
        // A creation that got no answer may be carried out late. Then the temporary Service is deleted first.
        if let Refusal::Address { .. } = refusal
            && let Some(plan) = &journal.seamless
            && self.is_held_by_temporary(journal, plan).await
        {
            return Err(Refusal::Conflict);
        }
        let service = self.label();
        let attempt = self.attempt(journal).await;
        let another = match &refusal {
            Refusal::Address { which, reason } => attempt.after_address(journal, *which, reason, targets).await,
            Refusal::Refused(reason) => attempt.after_refusal(journal, reason, targets).await,
            Refusal::Port { which, reason } => attempt.after_port(*which, reason, patience),
            _ => return Err(refusal),
        };
        tracing::debug!(service, %refusal, another, "the address was refused");
        match (another, refusal) {
            (true, _) => Ok(None),
            (false, Refusal::Port { reason, .. }) => Err(Refusal::Trouble(reason)),
            // Nothing else can be tried now. The move stays recorded, and is tried again later, at growing intervals.
            (false, _) => Err(Refusal::Refused(attempt.notes.join("; "))),
        }
    }

    /// Carries out the steps that are left of a recorded plain move.
    async fn finish_plain(&mut self, mut service: Value, journal: &Journal) -> Result<Outcome, MoveError> {
        loop {
            let next = step::next(&service, journal);
            // The record stays as long as a release without an answer may still arrive.
            if next == Step::Idle && step::may_still_begin(&service, journal) && !self.requests_ended() {
                self.rest_until_requests_end();
                return Ok(Outcome::Unmoved(Unmoved::NotBegun));
            }
            if next == Step::Idle {
                let discarded = self.discard().await;
                return match self.reached(&service) {
                    Some(reached) => Ok(reached),
                    None => discarded.map(|()| Outcome::Unmoved(Unmoved::NotMoving)),
                };
            }
            service = match self.carry_out_step(next, service, journal).await? {
                Some(service) => service,
                None => return self.discard().await.map(|()| Outcome::Unmoved(Unmoved::Gone)),
            };
        }
    }

    /// Carries out one step on the Service. Returns the Service as it is stored then; `None` if it is gone.
    async fn carry_out_step(
        &mut self,
        mut next: Step,
        service: Value,
        journal: &Journal,
    ) -> Result<Option<Value>, MoveError> {
        if next == Step::RestoreStatus && !self.may_restore_status(&service, journal).await {
            next = Step::Cleanup;
        }
        if matches!(next, Step::Assign | Step::Cleanup) {
            // A user may have removed all traces of the move. Then it has ended like this.
            self.reached = Some(self.ending(&service, journal));
        }
        let (name, result) = match next {
            Step::Idle => return Ok(Some(service)),
            Step::Assign => match self.assign(&service, journal).await {
                Ok(None) => return Ok(Some(service)),
                Ok(Some(written)) => ("assign", Ok(written)),
                Err(refusal) => ("assign", Err(refusal)),
            },
            Step::RestoreStatus => {
                let result = self.put("/status", text_of(step::with_status(&service, journal))).await;
                self.status_is_restored = result.is_ok();
                ("status", result)
            }
            Step::Cleanup => {
                let result = self.put("", text_of(step::cleaned_up(&service, journal, self.keeps_owners))).await;
                // If the API server rejects the restored owners, the present ones stay, so that the move ends.
                if matches!(result, Err(Refusal::Refused(_))) && !self.keeps_owners {
                    self.keeps_owners = true;
                    return Ok(Some(service));
                }
                ("cleanup", result)
            }
        };
        match result {
            Ok(written) => {
                self.pause = FIRST_PAUSE;
                Ok(Some(written))
            }
            Err(refusal) => {
                self.wait(RunStep::Changing(name), &refusal).await?;
                self.read(RunStep::Changing(name)).await
            }
        }
    }

    /// Whether the recorded status may be written to the Service, as it was just stored.
    async fn may_restore_status(&self, service: &Value, journal: &Journal) -> bool {
        let age = Timestamp::now().as_second() - journal.recorded_at;
        !self.status_is_restored
            && (-STATUS_LASTS..=STATUS_LASTS).contains(&age)
            && self.targets.may_show(service, &step::recorded_ips(journal)).await
    }

    /// How the move ends if the Service stays as it is.
    fn ending(&self, service: &Value, journal: &Journal) -> Outcome {
        let (to, notes) = match &self.attempt {
            Some(attempt) => (attempt.wanted(), attempt.notes.as_slice()),
            None => (journal.to.as_slice(), [].as_slice()),
        };
        step::ending(service, journal, to, &[self.refusals.as_slice(), notes, &self.progress.notes].concat())
    }

    /// How the move of the Service, which is stored like this, has ended; `None` if no step was left.
    fn reached(&mut self, service: &Value) -> Option<Outcome> {
        Some(match self.reached.take()? {
            Outcome::Overtaken { from, why, .. } => Outcome::Overtaken { from, now: addresses(service), why },
            reached => reached,
        })
    }
}

fn parsed(answer: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(answer).map_err(|error| refusal_of(&kube::Error::SerdeError(error)))
}

/// Whether a Service of so many bytes, as the API server sends it, is small enough to begin its move, or looks as if its
/// move had begun: the move itself makes the Service larger.
fn may_begin(service: &Value, bytes: usize, size: Size) -> bool {
    bytes <= size.most() || looks_half_moved(service)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_of_the_api_server_decides_whether_a_service_is_too_large() {
        struct Case {
            name: &'static str,
            annotations: Value,
            more: usize,
            expected: bool,
        }
        let moving = json!({"clusterip-policy/moving": "10.0.0.1"});
        let cases = [
            Case { name: "the largest", annotations: json!({}), more: 0, expected: true },
            Case { name: "larger, because of escapes", annotations: json!({}), more: 1, expected: false },
            Case { name: "larger because of its move", annotations: moving, more: 1, expected: true },
        ];
        for Case { name, annotations, more, expected } in cases {
            let service = json!({"metadata": {"annotations": annotations}, "spec": {"type": "ClusterIP"}});
            for size in [Size::Usual, Size::Large] {
                assert_eq!(may_begin(&service, size.most() + more, size), expected, "{name}");
            }
        }
    }

    #[test]
    fn only_errors_without_an_answer_about_the_record_pass() {
        let of = |refusal: fn(String) -> Refusal| MoveError::of_record("Service shop/web", &refusal("no".to_owned()));
        let errors = [of(Refusal::Trouble), of(Refusal::Refused), of(Refusal::TooLarge)];
        assert!(errors.iter().all(|error| error.to_string() == "Service shop/web: no"), "{errors:?}");
        let [silent, forbidden, too_large] = errors;
        assert!(matches!(silent, MoveError::Unfinished(_)), "{silent:?}");
        assert!(matches!(forbidden, MoveError::Refused(_)), "{forbidden:?}");
        assert!(matches!(too_large, MoveError::TooLarge(_)), "{too_large:?}");
    }
}
