//! Gives a Service another address without deleting it.
//!
//! # Expected flow
//! A `ClusterIP` can't be changed, but a Service without one may be given any. [`Mover::start`] turns the Service
//! into an `ExternalName` for some milliseconds, and then gives it everything back, at the new address. Before that
//! it writes a [record](super::records) of all that is needed to finish into the server's namespace. [`super::step`]
//! defines the steps.
//!
//! # Guarantees
//! - The Service is never deleted or created. Its UID stays, and so does everything that depends on it.
//! - Nothing is changed if the API server refuses the first write, which is tried by a dry run.
//! - A move may be cut off anywhere. [`Mover::resume`] finishes it from the record. It may be called again, and does
//!   nothing if nothing is left to do. Before it restores an address or an external address, it asks the policy.
//! - Nothing is written to a Service without a record of its move, whatever the Service itself says.
//! - Changes that others make meanwhile are kept. Each write names the version that it was made from.
//! - A move ends: after [`Limits::total`] with an error, and the record stays for [`Mover::resume`].
//!
//! # Caveats
//! - Another Service may take the old address, the new address or a node port meanwhile. Then the mover takes the
//!   next address that [`Targets`] has, otherwise the old one, otherwise one that the API server picks. A node port
//!   is waited for, and then replaced. The [`Outcome`] says so.
//! - JSON is sent back as it came. A typed client would drop the fields that it does not know.

use std::net::IpAddr;
use std::time::Duration;

use http::{Method, Request};
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use super::attempt::{Attempt, next_target, same_families};
use super::field_ownership::MANAGER;
use super::journal::Journal;
use super::outcome::{LARGEST, Outcome, Unmoved, shown};
use super::ownership::set_by_hand;
use super::records::{RecordError, Records};
use super::refusal::Refusal;
use super::step::{self, Step};
use super::targets::Targets;
use crate::cluster::object::service_path;
use crate::cluster::snapshot::addresses;

/// A move to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The UID of the Service. Another Service of the same name is not moved.
    pub uid: String,
    /// All addresses that the Service is to have, primary first, in its order of families. A family that stays has
    /// its old address here.
    pub addresses: Vec<IpAddr>,
    /// Why the Service moves, for the Event and the log.
    pub why: String,
    /// Whether to move a Service of type `LoadBalancer`, whose cloud controller may tear its load balancer down.
    pub load_balancers: bool,
}

/// A move that is not finished. If it is recorded by now, [`Mover::resume`] finishes it.
#[derive(Debug, Error)]
pub enum MoveError {
    /// The ordered addresses do not have the address families of the Service.
    #[error(
        "{service} at {from} can't be moved to {to}: one address for each of its families is needed, in their order"
    )]
    Families {
        /// The Service.
        service: String,
        /// The present addresses.
        from: String,
        /// The ordered addresses.
        to: String,
    },
    /// The API server, or a policy, refused a step.
    #[error("{service} can't be moved: the step {step:?} was refused: {reason}{}", if *.untouched { "; nothing was changed" } else { "; it is tried again" })]
    Refused {
        /// The Service.
        service: String,
        /// The name of the step.
        step: &'static str,
        /// The message of the API server.
        reason: String,
        /// Whether the Service is unchanged.
        untouched: bool,
    },
    /// The API server did not answer, or answered with errors, for too long.
    #[error("{service}: the step {step:?} was not finished within {} s: {reason}", .limit.as_secs_f32())]
    Unfinished {
        /// The Service.
        service: String,
        /// The name of the step.
        step: &'static str,
        /// The last error.
        reason: String,
        /// The time limit of the move.
        limit: Duration,
    },
    /// The record of the move can't be read.
    #[error("{service}: {reason}")]
    Record {
        /// The Service.
        service: String,
        /// The error.
        reason: RecordError,
    },
}

/// The time limits of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of one request.
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

/// For how many seconds after a move was recorded the status of a load balancer is restored.
const STATUS_LASTS: i64 = 120;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Moves Services.
#[derive(Clone)]
pub struct Mover {
    client: Client,
    records: Records,
    limits: Limits,
}

impl Mover {
    /// A mover with the default [`Limits`], which records its moves in `namespace`, the server's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self::with_limits(client, namespace, Limits::default())
    }

    /// A mover with the given limits.
    pub fn with_limits(client: Client, namespace: &str, limits: Limits) -> Self {
        let records = Records::new(client.clone(), namespace);
        Self { client, records, limits }
    }

    /// The records of this mover's moves.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Moves a Service. If a move of the Service is recorded already, that move is finished instead.
    ///
    /// # Errors
    /// [`MoveError`] if the move is not finished.
    pub async fn start(&self, order: &Order, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &order.namespace, &order.name, &order.uid);
        match run.read("read").await? {
            Some(service) => run.begin(service, order, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::Gone)),
        }
    }

    /// As [`Self::start`], for a Service that was just read. `service` is the whole object of the API server. If the
    /// Service was changed since, the first write is refused, and the Service is read again.
    ///
    /// # Errors
    /// [`MoveError`] if the move is not finished.
    pub async fn start_from(&self, service: Value, order: &Order, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &order.namespace, &order.name, &order.uid);
        match run.same_service(service) {
            Some(service) => run.begin(service, order, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::Gone)),
        }
    }

    /// Finishes a recorded move from wherever it was cut off, and deletes its record.
    ///
    /// # Errors
    /// [`MoveError`] if the move is not finished; then it may be called again.
    pub async fn resume(&self, journal: &Journal, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &journal.namespace, &journal.name, &journal.uid);
        match run.read("read").await? {
            Some(service) => run.finish(service, journal, targets).await,
            None => run.end_gone().await,
        }
    }
}

/// The result of an attempt to place the Service.
enum Placing {
    /// The Service is placed. Contains the Service as the API server stored it.
    Done(Value),
    /// The attempt was refused, and there is another one to make.
    Again,
}

/// One run of a move, from reading the Service to its outcome.
struct Run<'m> {
    mover: &'m Mover,
    namespace: &'m str,
    name: &'m str,
    uid: &'m str,
    since: Instant,
    pause: Duration,
    /// The addresses that this run has ordered; `None` in a run that finishes what another one began.
    ordered: Option<Vec<IpAddr>>,
    refused: Vec<IpAddr>,
    attempt: Option<Attempt>,
    /// The journal that this run recorded.
    recorded: Option<Journal>,
    /// Whether a release got no answer. It may still be carried out.
    uncertain: bool,
    /// Whether the creation of a record got no answer.
    unanswered: bool,
}

impl<'m> Run<'m> {
    fn new(mover: &'m Mover, namespace: &'m str, name: &'m str, uid: &'m str) -> Self {
        Self {
            mover,
            namespace,
            name,
            uid,
            since: Instant::now(),
            pause: FIRST_PAUSE,
            ordered: None,
            refused: Vec::new(),
            attempt: None,
            recorded: None,
            uncertain: false,
            unanswered: false,
        }
    }

    fn label(&self) -> String {
        format!("Service {}/{}", self.namespace, self.name)
    }

    fn path(&self) -> String {
        service_path(self.namespace, self.name)
    }

    /// Begins a move of the Service that was read, and finishes it.
    async fn begin(&mut self, service: Value, order: &Order, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let ended = self.move_from(service, order, targets).await;
        // A record that outlives its move could be replayed. But if the API server did not answer a release, the
        // release may still be carried out and needs the record. Then the next move of the Service, or the next
        // leader, deletes it.
        let may_be_recorded = self.recorded.is_some() || self.unanswered;
        if let (Ok(Outcome::Unmoved(_)), true, false) = (&ended, may_be_recorded, self.uncertain) {
            let _ = self.discard().await;
        }
        ended
    }

    async fn move_from(
        &mut self,
        mut service: Value,
        order: &Order,
        targets: &dyn Targets,
    ) -> Result<Outcome, MoveError> {
        let mut to = order.addresses.clone();
        let was_by_hand = set_by_hand(&service);
        loop {
            if step::looks_half_moved(&service) {
                return self.finish_recorded(service, targets).await;
            }
            if let Some(unmoved) = step::unmovable(&service, &to, order.load_balancers) {
                return Ok(Outcome::Unmoved(unmoved));
            }
            let bytes = service.to_string().len();
            if bytes > LARGEST {
                return Ok(Outcome::Unmoved(Unmoved::TooLarge { bytes }));
            }
            let from = addresses(&service);
            if !same_families(&from, &to) {
                let (from, to) = (shown(&from), shown(&to));
                return Err(MoveError::Families { service: self.label(), from, to });
            }
            if let Some(taken) = self.first_taken(&from, &to).await? {
                self.refused.push(taken);
                match next_target(targets, &self.refused, &from).await {
                    Some(next) => to = next,
                    None => return Ok(Outcome::Unmoved(Unmoved::NoTarget { taken: self.refused.clone() })),
                }
            } else {
                self.ordered = Some(to.clone());
                if let Some((released, journal)) = self.release(&service, &to, &order.why).await? {
                    return self.finish(released, &journal, targets).await;
                }
            }
            match self.read("read").await? {
                // A user may have set the address by hand since the Service was looked at.
                Some(now) if set_by_hand(&now) && !was_by_hand => return Ok(Outcome::Unmoved(Unmoved::SetByHand)),
                Some(now) => service = now,
                None => return Ok(Outcome::Unmoved(Unmoved::Gone)),
            }
        }
    }

    /// Finishes a move that looks begun, if it is recorded.
    async fn finish_recorded(&mut self, service: Value, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let recorded = match self.recorded.take() {
            Some(journal) => Some(journal),
            None => {
                // Addresses that another run ordered are checked by the policy before they are restored.
                self.ordered = None;
                self.record().await?
            }
        };
        match recorded {
            Some(journal) => self.finish(service, &journal, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::NotRecorded)),
        }
    }

    /// Carries out the steps that are left of a recorded move.
    async fn finish(
        &mut self,
        mut service: Value,
        journal: &Journal,
        targets: &dyn Targets,
    ) -> Result<Outcome, MoveError> {
        let mut reached = Outcome::Unmoved(Unmoved::NotMoving);
        // Later the addresses may belong to another load balancer, and then only its controller may write the status.
        let age = Timestamp::now().as_second() - journal.recorded_at;
        let (mut skip_status, mut keep_owners) = (!(-STATUS_LASTS..=STATUS_LASTS).contains(&age), false);
        loop {
            let mut next = step::next(&service, journal);
            if next == Step::RestoreStatus && skip_status {
                next = Step::Forget;
            }
            let (name, result) = match next {
                // The record stays as long as a release without an answer may still arrive.
                Step::AtHome if step::may_still_begin(&service, journal) => {
                    return Ok(Outcome::Unmoved(Unmoved::NotBegun));
                }
                Step::AtHome => {
                    let _ = self.discard().await;
                    return Ok(match reached {
                        Outcome::Overtaken { from, why, .. } => {
                            Outcome::Overtaken { from, now: addresses(&service), why }
                        }
                        reached => reached,
                    });
                }
                Step::Place => {
                    // A user may have removed all traces of the move. Then it has ended like this.
                    reached = self.ending(&service, journal);
                    match self.place(&service, journal, targets).await? {
                        Ok(Placing::Again) => continue,
                        Ok(Placing::Done(written)) => ("place", Ok(written)),
                        Err(refusal) => ("place", Err(refusal)),
                    }
                }
                Step::RestoreStatus if !journal.load_balancer.as_ref().is_some_and(|old| targets.may_show(old)) => {
                    skip_status = true;
                    continue;
                }
                Step::RestoreStatus => {
                    let result = self.put("/status", &step::with_status(&service, journal)).await;
                    skip_status = result.is_ok();
                    ("status", result)
                }
                Step::Forget => {
                    reached = self.ending(&service, journal);
                    let result = self.put("", &step::forgotten(&service, journal, keep_owners)).await;
                    // If the API server rejects the restored owners, the present ones stay, so that the move ends.
                    if matches!(result, Err(Refusal::Refused(_))) && !keep_owners {
                        keep_owners = true;
                        continue;
                    }
                    ("forget", result)
                }
            };
            service = match result {
                Ok(written) => {
                    self.pause = FIRST_PAUSE;
                    written
                }
                Err(refusal) => {
                    self.wait(name, &refusal).await?;
                    match self.read(name).await? {
                        Some(service) => service,
                        None => return self.end_gone().await,
                    }
                }
            };
        }
    }

    /// Ends the move of a Service that is gone. Its record is useless, and is deleted.
    async fn end_gone(&self) -> Result<Outcome, MoveError> {
        let _ = self.discard().await;
        Ok(Outcome::Unmoved(Unmoved::Gone))
    }

    /// How the move ends if the Service stays as it is.
    fn ending(&self, service: &Value, journal: &Journal) -> Outcome {
        let (to, notes) = match &self.attempt {
            Some(attempt) => (attempt.addresses(), attempt.notes.as_slice()),
            None => (journal.to.as_slice(), [].as_slice()),
        };
        step::ending(service, journal, to, notes)
    }

    /// Gives the Service an address, or prepares another attempt if this one is refused.
    async fn place(
        &mut self,
        service: &Value,
        journal: &Journal,
        targets: &dyn Targets,
    ) -> Result<Result<Placing, Refusal>, MoveError> {
        let (ordered, refused) = (self.ordered.as_deref(), self.refused.as_slice());
        let resumed = ordered.is_none();
        let attempt = match &mut self.attempt {
            Some(attempt) => attempt,
            none => none.insert(Attempt::first(journal, ordered, refused, targets).await),
        };
        let body = step::placed(service, journal, &attempt.placement, &attempt.without);
        if resumed
            && let Err(reason) = targets.judge(&body).await
            && attempt.after_judgement(journal, step::has_external(&body), &reason)
        {
            return Ok(Ok(Placing::Again));
        }
        let refusal = match self.put("", &body).await {
            Ok(written) => return Ok(Ok(Placing::Done(written))),
            Err(refusal) => refusal,
        };
        let patience = self.mover.limits.ports;
        let Some(attempt) = &mut self.attempt else { return Ok(Err(refusal)) };
        let another = match &refusal {
            Refusal::Address { which, reason } => attempt.after_address(journal, *which, reason, targets).await,
            Refusal::Refused(reason) => attempt.after_refusal(journal, reason),
            Refusal::Port { which, reason } => attempt.after_port(*which, reason, patience),
            _ => return Ok(Err(refusal)),
        };
        tracing::debug!(service = %self.label(), %refusal, another, "placing was refused");
        Ok(match (another, refusal) {
            (true, _) => Ok(Placing::Again),
            // Nothing else can be tried now. The move stays recorded, and is tried again later, at growing intervals.
            (false, refusal @ Refusal::Refused(_)) => Err(refusal),
            (false, refusal) => Err(Refusal::Trouble(refusal.to_string())),
        })
    }

    /// Releases the address. Returns `None` if the Service was changed meanwhile and must be read again.
    async fn release(
        &mut self,
        service: &Value,
        to: &[IpAddr],
        why: &str,
    ) -> Result<Option<(Value, Journal)>, MoveError> {
        let mut journal = step::beginning(service, to, why);
        let body = step::released(service, &journal);
        match self.put("?dryRun=All", &body).await {
            Ok(tried) => {
                journal.recorded_at = Timestamp::now().as_second();
                journal.released = tried.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
            }
            Err(refusal) => return self.unreleased(&refusal).await,
        }
        if let Err(refusal) = self.record_journal(&journal).await {
            return self.unreleased(&refusal).await;
        }
        match self.put("", &body).await {
            Ok(written) => Ok(Some((written, journal))),
            Err(refusal) => {
                self.uncertain |= matches!(refusal, Refusal::Trouble(_));
                self.unreleased(&refusal).await
            }
        }
    }

    /// Handles a release that failed, or may have failed. The record of a move that will not begin is deleted.
    async fn unreleased(&mut self, refusal: &Refusal) -> Result<Option<(Value, Journal)>, MoveError> {
        if matches!(refusal, Refusal::Refused(_)) && !self.uncertain && self.recorded.take().is_some() {
            let _ = self.discard().await;
        }
        self.wait("release", refusal).await?;
        Ok(None)
    }

    /// Records the journal. Replaces a record that an earlier try of this run, or another run, wrote for this Service
    /// without beginning the move.
    async fn record_journal(&mut self, journal: &Journal) -> Result<(), Refusal> {
        let creation = || self.mover.records.creation(journal).map_err(Refusal::Refused);
        let mut kept = match &self.recorded {
            Some(recorded) => Some(recorded.clone()),
            None => match self.send(creation()?).await {
                Err(Refusal::Conflict) => self.record().await.map_err(|error| Refusal::Trouble(error.to_string()))?,
                created => {
                    self.unanswered |= matches!(created, Err(Refusal::Trouble(_)));
                    created?;
                    Some(journal.clone())
                }
            },
        };
        // As long as the Service is unchanged, an earlier request to release may still arrive, and the record that it
        // needs serves as well as a new one. A record of an older state of the Service is useless.
        if kept.as_ref().is_some_and(|kept| kept.resource_version != journal.resource_version) {
            self.discard().await.map_err(|error| Refusal::Trouble(error.to_string()))?;
            kept = None;
        }
        if kept.is_none() {
            self.send(creation()?).await?;
        }
        self.recorded = Some(journal.clone());
        Ok(())
    }

    /// Deletes the record. If that fails, the next leader deletes it.
    async fn discard(&self) -> Result<(), RecordError> {
        let deleted = self.mover.records.delete(self.uid).await;
        deleted.inspect_err(|error| {
            tracing::warn!(service = %self.label(), %error, "the record of a move that has ended was not deleted");
        })
    }

    /// Reads the journal that is recorded for this Service.
    async fn record(&self) -> Result<Option<Journal>, MoveError> {
        let found = self.mover.records.get(self.uid).await;
        found.map_err(|reason| MoveError::Record { service: self.label(), reason })
    }

    /// The first of the new addresses that is allocated already.
    async fn first_taken(&mut self, from: &[IpAddr], to: &[IpAddr]) -> Result<Option<IpAddr>, MoveError> {
        for address in to.iter().filter(|address| !from.contains(address)) {
            loop {
                match self
                    .request(Method::GET, &format!("/apis/networking.k8s.io/v1/ipaddresses/{address}"), None)
                    .await
                {
                    Ok(_) => return Ok(Some(*address)),
                    // This is also the answer if there is no such API. Then the API server decides when the address
                    // is written.
                    Err(Refusal::Gone) => break,
                    Err(refusal) => self.wait("look up", &refusal).await?,
                }
            }
        }
        Ok(None)
    }

    /// Reads the stored Service; `None` if it is gone, or if another Service has its name.
    async fn read(&mut self, step: &'static str) -> Result<Option<Value>, MoveError> {
        loop {
            match self.request(Method::GET, &self.path(), None).await {
                Ok(service) => return Ok(self.same_service(service)),
                Err(Refusal::Gone) => return Ok(None),
                Err(refusal) => self.wait(step, &refusal).await?,
            }
        }
    }

    /// The Service, unless it is another one of the same name.
    fn same_service(&self, service: Value) -> Option<Value> {
        let uid = service.pointer("/metadata/uid").and_then(Value::as_str);
        (uid == Some(self.uid)).then_some(service)
    }

    /// Waits before the next try. Gives up if the request was refused, or if the time is over.
    async fn wait(&mut self, step: &'static str, refusal: &Refusal) -> Result<(), MoveError> {
        let limit = self.mover.limits.total;
        let (service, reason) = (self.label(), refusal.to_string());
        match refusal {
            Refusal::Refused(_) | Refusal::Address { .. } | Refusal::Port { .. } => {
                let untouched = matches!(step, "read" | "look up" | "release");
                return Err(MoveError::Refused { service, step, reason, untouched });
            }
            _ if self.since.elapsed() + self.pause > limit => {
                return Err(MoveError::Unfinished { service, step, reason, limit });
            }
            _ => {}
        }
        tracing::debug!(service, step, reason, "trying again");
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    async fn put(&self, suffix: &str, service: &Value) -> Result<Value, Refusal> {
        let separator = if suffix.contains('?') { '&' } else { '?' };
        let path = format!("{}{suffix}{separator}fieldManager={MANAGER}", self.path());
        self.request(Method::PUT, &path, Some(service)).await
    }

    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Refusal> {
        let invalid = |error: &dyn std::fmt::Display| Refusal::Refused(error.to_string());
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| invalid(&error))?,
            None => Vec::new(),
        };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json").body(body);
        self.send(request.map_err(|error| invalid(&error))?).await
    }

    async fn send(&self, request: Request<Vec<u8>>) -> Result<Value, Refusal> {
        match timeout(self.mover.limits.request, self.mover.client.request::<Value>(request)).await {
            Ok(answer) => answer.map_err(|error| Refusal::of(&error)),
            Err(_) => {
                let limit = self.mover.limits.request.as_secs_f32();
                Err(Refusal::Trouble(format!("no answer within {limit} s")))
            }
        }
    }
}
