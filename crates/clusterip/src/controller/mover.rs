//! Gives a Service another address without deleting it.
//!
//! # Expected flow
//! A `ClusterIP` can't be changed, but a Service that has none may be given any: [`Mover::start`] makes
//! the Service an `ExternalName` for some milliseconds, with the [journal](super::journal) of all that is
//! needed to finish in an annotation, then gives it everything back, at the new address. [`super::step`]
//! has the steps.
//!
//! # Guarantees
//! - The Service is never deleted, nor created: its UID, and whatever hangs on it, stays.
//! - Nothing is changed where the API server refuses the first write, which is tried by a dry run.
//! - It may be cut off anywhere. [`Mover::resume`] finishes, from what is stored alone; it does so again
//!   and again, and does nothing where nothing is left to do.
//! - What others change meanwhile stays changed. Each write says which version it was made of.
//! - It ends: after [`Limits::total`] with an error, and the journal left for [`Mover::resume`].
//!
//! # Caveats
//! - Somebody else may take the old address, the new one, or a node port meanwhile: the next address that
//!   [`Targets`] has is taken, else the old one, else the API server picks; a node port is waited for, and
//!   then replaced. The [`Outcome`] tells.
//! - JSON is sent as it came: a typed client would drop the fields that it does not know.

use std::net::IpAddr;
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use super::alternatives::Targets;
use super::attempt::{Attempt, next_target, same_families};
use super::field_ownership::MANAGER;
use super::journal::{Journal, JournalError};
use super::outcome::{Outcome, Unmoved, shown};
use super::ownership::set_by_hand;
use super::refusal::Refusal;
use super::step::{self, Step};
use crate::cluster::object::service_path;
use crate::cluster::snapshot::addresses;

/// A move that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The Service's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID: another Service of that name is not meant.
    pub uid: String,
    /// All addresses that it is to have, primary first, in its order of families. A family that stays has
    /// its old address here.
    pub addresses: Vec<IpAddr>,
    /// Why: for the Event and the log.
    pub why: String,
    /// Whether it is moved even if it is a load balancer, whose cloud controller may tear it down.
    pub load_balancers: bool,
}

/// A move that is not finished. Where the Service has a journal by now, [`Mover::resume`] finishes.
#[derive(Debug, Error)]
pub enum MoveError {
    /// The Service can't be what it is said to be.
    #[error("{what} can't be moved: it has no {missing}")]
    Incomplete {
        /// The Service.
        what: String,
        /// What it lacks.
        missing: &'static str,
    },
    /// The order does not fit.
    #[error(
        "{service} at {from} can't be moved to {to}: one address for each of its families is needed, in their order"
    )]
    Families {
        /// The Service.
        service: String,
        /// Its addresses.
        from: String,
        /// Those that it should have.
        to: String,
    },
    /// The API server, or a policy, forbids a step.
    #[error("{service} can't be moved: the step {step:?} was refused: {reason}{}", if *.untouched { "; nothing was changed" } else { "; it is tried again" })]
    Refused {
        /// The Service.
        service: String,
        /// Which step.
        step: &'static str,
        /// What the API server says.
        reason: String,
        /// Whether the Service is as it was.
        untouched: bool,
    },
    /// The API server did not answer, or not well, for too long.
    #[error("{service}: the step {step:?} was not finished within {} s: {reason}", .limit.as_secs_f32())]
    Unfinished {
        /// The Service.
        service: String,
        /// Which step.
        step: &'static str,
        /// The last that went wrong.
        reason: String,
        /// How long it was tried.
        limit: Duration,
    },
    /// The journal can't be written.
    #[error("{service}: {reason}")]
    Journal {
        /// The Service.
        service: String,
        /// Why.
        reason: JournalError,
    },
}

/// How long a move may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One request.
    pub request: Duration,
    /// The whole move, after which it is left to the next resumption.
    pub total: Duration,
    /// How long a node port that somebody took is waited for, while the Service has no address.
    pub ports: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { request: Duration::from_secs(10), total: Duration::from_secs(60), ports: Duration::from_secs(5) }
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Moves Services.
#[derive(Clone)]
pub struct Mover {
    client: Client,
    limits: Limits,
}

impl Mover {
    /// A mover with the usual [`Limits`].
    pub fn new(client: Client) -> Self {
        Self::with_limits(client, Limits::default())
    }

    /// A mover with other limits.
    pub fn with_limits(client: Client, limits: Limits) -> Self {
        Self { client, limits }
    }

    /// Moves a Service. One that is on the move already is finished instead, wherever that leads.
    ///
    /// # Errors
    /// [`MoveError`]
    pub async fn start(&self, order: &Order, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &order.namespace, &order.name, &order.uid);
        match run.read("read").await? {
            Some(service) => run.begin(service, order, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::Gone)),
        }
    }

    /// As [`Self::start`], for a Service that was just read: `service` is all that the API server has of
    /// it. Where it was changed since, the first write is refused, and it is read again.
    ///
    /// # Errors
    /// [`MoveError`]
    pub async fn start_from(&self, service: Value, order: &Order, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut run = Run::new(self, &order.namespace, &order.name, &order.uid);
        match run.own(service) {
            Some(service) => run.begin(service, order, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::Gone)),
        }
    }

    /// Finishes whatever a move has left on a Service, from its phase, or takes off what only looks so.
    ///
    /// # Errors
    /// [`MoveError`]; it may be called again.
    pub async fn resume(&self, service: &Value, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let field = |name: &'static str| {
            let value = service.get("metadata").and_then(|metadata| metadata.get(name)).and_then(Value::as_str);
            value.ok_or(MoveError::Incomplete { what: "a Service".to_owned(), missing: name })
        };
        let mut run = Run::new(self, field("namespace")?, field("name")?, field("uid")?);
        // What came from a watch may be stale.
        match run.read("read").await? {
            Some(service) => run.finish(service, targets).await,
            None => Ok(Outcome::Unmoved(Unmoved::Gone)),
        }
    }
}

/// What has become of an attempt to place the Service.
enum Placing {
    /// It is placed, as this says.
    Done(Value),
    /// There is another attempt to make.
    Again,
}

/// One go at a move.
struct Run<'m> {
    mover: &'m Mover,
    namespace: &'m str,
    name: &'m str,
    uid: &'m str,
    since: Instant,
    pause: Duration,
    /// What this run itself has ordered, and could not have.
    ordered: Option<Vec<IpAddr>>,
    refused: Vec<IpAddr>,
    attempt: Option<Attempt>,
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
        }
    }

    fn label(&self) -> String {
        format!("Service {}/{}", self.namespace, self.name)
    }

    fn path(&self) -> String {
        service_path(self.namespace, self.name)
    }

    /// Begins a move of the Service that was read, and ends it.
    async fn begin(&mut self, mut service: Value, order: &Order, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut to = order.addresses.clone();
        let was_by_hand = set_by_hand(&service);
        loop {
            if step::next(&service) != Step::AtHome {
                return self.finish(service, targets).await;
            }
            if let Some(unmoved) = step::unmovable(&service, &to, order.load_balancers) {
                return Ok(Outcome::Unmoved(unmoved));
            }
            let from = addresses(&service);
            if !same_families(&from, &to) {
                let (from, to) = (shown(&from), shown(&to));
                return Err(MoveError::Families { service: self.label(), from, to });
            }
            if let Some(taken) = self.taken(&from, &to).await? {
                self.refused.push(taken);
                match next_target(targets, &self.refused, &from) {
                    Some(next) => to = next,
                    None => return Ok(Outcome::Unmoved(Unmoved::NoTarget { taken: self.refused.clone() })),
                }
            } else {
                self.ordered = Some(to.clone());
                if let Some(released) = self.release(&service, &to, &order.why).await? {
                    return self.finish(released, targets).await;
                }
            }
            match self.read("read").await? {
                // Somebody may have chosen its address since it was looked at.
                Some(now) if set_by_hand(&now) && !was_by_hand => return Ok(Outcome::Unmoved(Unmoved::SetByHand)),
                Some(now) => service = now,
                None => return Ok(Outcome::Unmoved(Unmoved::Gone)),
            }
        }
    }

    /// Does what is left to do.
    async fn finish(&mut self, mut service: Value, targets: &dyn Targets) -> Result<Outcome, MoveError> {
        let mut reached = Outcome::Unmoved(Unmoved::NotMoving);
        let mut status_done = false;
        let mut ownership_refused = false;
        loop {
            let mut next = step::next(&service);
            if let Step::RestoreStatus(journal) = &next
                && status_done
            {
                let ending = step::ending(&service, journal);
                next = Step::Forget { journal: Some(journal.clone()), ending };
            }
            let (name, result) = match next {
                Step::AtHome => {
                    return Ok(match reached {
                        Outcome::Overtaken { from, why, .. } => {
                            Outcome::Overtaken { from, now: addresses(&service), why }
                        }
                        reached => reached,
                    });
                }
                Step::Place(journal) => {
                    // Should somebody take all of ours off at once, this is how it will have ended.
                    reached = step::ending(&service, &journal);
                    match self.place(&service, &journal, targets).await? {
                        Ok(Placing::Again) => continue,
                        Ok(Placing::Done(written)) => ("place", Ok(written)),
                        Err(refusal) => ("place", Err(refusal)),
                    }
                }
                Step::RestoreStatus(journal) => {
                    let result = self.put("/status", &step::with_status(&service, &journal)).await;
                    status_done = result.is_ok();
                    ("status", result)
                }
                Step::Forget { mut journal, ending } => {
                    reached = ending;
                    if let Some(journal) = journal.as_deref_mut().filter(|_| ownership_refused) {
                        journal.managed_fields.clear();
                    }
                    let result = self.put("", &step::forgotten(&service, journal.as_deref())).await;
                    // Owners that nobody wrote like this are not worth an annotation that never ends.
                    if matches!(result, Err(Refusal::Refused(_))) && !ownership_refused {
                        ownership_refused = true;
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
                        None => return Ok(Outcome::Unmoved(Unmoved::Gone)),
                    }
                }
            };
        }
    }

    /// Gives the Service an address, or makes up another attempt where this one is refused.
    async fn place(
        &mut self,
        service: &Value,
        journal: &Journal,
        targets: &dyn Targets,
    ) -> Result<Result<Placing, Refusal>, MoveError> {
        let (ordered, refused) = (self.ordered.as_deref(), self.refused.as_slice());
        let attempt = self.attempt.get_or_insert_with(|| Attempt::first(journal, ordered, refused, targets));
        let body = step::placed(service, journal, &attempt.placement, &attempt.without, &attempt.notes);
        let body = match body {
            Ok(body) => body,
            Err(reason) => return Err(self.journal(reason)),
        };
        let refusal = match self.put("", &body).await {
            Ok(written) => return Ok(Ok(Placing::Done(written))),
            Err(refusal) => refusal,
        };
        let patience = self.mover.limits.ports;
        let Some(attempt) = &mut self.attempt else { return Ok(Err(refusal)) };
        let another = match &refusal {
            Refusal::Address { which, reason } => attempt.after_address(journal, *which, reason, targets),
            Refusal::Refused(reason) => attempt.after_refusal(journal, reason),
            Refusal::Port { which, reason } => attempt.after_port(*which, reason, patience),
            _ => return Ok(Err(refusal)),
        };
        tracing::debug!(service = %self.label(), %refusal, another, "placing was refused");
        // Whatever it was, the Service must not stay without an address: it is tried as long as possible.
        Ok(match another {
            true => Ok(Placing::Again),
            false => Err(Refusal::Trouble(refusal.to_string())),
        })
    }

    /// Releases the address; nothing where the Service was changed meanwhile, and must be read again.
    async fn release(&mut self, service: &Value, to: &[IpAddr], why: &str) -> Result<Option<Value>, MoveError> {
        let mut journal = step::beginning(service, to, why);
        for query in ["?dryRun=All", ""] {
            let body = step::released(service, &journal).map_err(|reason| self.journal(reason))?;
            match self.put(query, &body).await {
                Ok(written) if query.is_empty() => return Ok(Some(written)),
                Ok(tried) => {
                    journal.released = tried.get("spec").and_then(Value::as_object).cloned().unwrap_or_default()
                }
                Err(refusal) => {
                    self.wait("release", &refusal).await?;
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// The first of the new addresses that somebody has.
    async fn taken(&mut self, from: &[IpAddr], to: &[IpAddr]) -> Result<Option<IpAddr>, MoveError> {
        for address in to.iter().filter(|address| !from.contains(address)) {
            loop {
                match self
                    .request(Method::GET, &format!("/apis/networking.k8s.io/v1/ipaddresses/{address}"), None)
                    .await
                {
                    Ok(_) => return Ok(Some(*address)),
                    // Also where there is no such API; the API server has the last word then.
                    Err(Refusal::Gone) => break,
                    Err(refusal) => self.wait("look up", &refusal).await?,
                }
            }
        }
        Ok(None)
    }

    /// The Service as it is stored; nothing where it is gone, or another has its name.
    async fn read(&mut self, step: &'static str) -> Result<Option<Value>, MoveError> {
        loop {
            match self.request(Method::GET, &self.path(), None).await {
                Ok(service) => return Ok(self.own(service)),
                Err(Refusal::Gone) => return Ok(None),
                Err(refusal) => self.wait(step, &refusal).await?,
            }
        }
    }

    /// The Service, unless it is another of its name.
    fn own(&self, service: Value) -> Option<Value> {
        let uid = service.pointer("/metadata/uid").and_then(Value::as_str);
        (uid == Some(self.uid)).then_some(service)
    }

    /// Waits before the next try, or gives up. What is refused is not tried again.
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

    fn journal(&self, reason: JournalError) -> MoveError {
        MoveError::Journal { service: self.label(), reason }
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
        let request = request.map_err(|error| invalid(&error))?;
        match timeout(self.mover.limits.request, self.mover.client.request::<Value>(request)).await {
            Ok(answer) => answer.map_err(|error| Refusal::of(&error)),
            Err(_) => {
                let limit = self.mover.limits.request.as_secs_f32();
                Err(Refusal::Trouble(format!("no answer within {limit} s")))
            }
        }
    }
}
