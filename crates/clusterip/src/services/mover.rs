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
//!   server is asked directly before the first write to the Service.
//! - A move may be cut off anywhere. [`Mover::resume`] finishes it from the record. It may be called again, and does
//!   nothing if nothing is left to do. Before it restores a new address or an external address, it asks the policy.
//! - Nothing is written to a Service without a record of its move, whatever the Service itself says.
//! - Changes that others make meanwhile are kept. Each write names the version that it was made from.
//! - A move ends: after [`Limits::total`] with an error, and the record stays for [`Mover::resume`].
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
//! temporary Services. Both use the requests of `run`. `records` stores the journals, and [`targets`] chooses target
//! addresses.

use std::net::IpAddr;
use std::sync::Arc;

use clusterip_cluster::snapshot::addresses;
use clusterip_core::annotations::looks_half_moved;
use clusterip_core::service::may_be_set_by_hand;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::journal::{Journal, Plan};
use clusterip_moves::outcome::{Outcome, Refusal, Size, Unmoved, shown};
use clusterip_moves::seamless::Progress;
use clusterip_moves::step::{self, Step};
use http::Method;
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;

pub(crate) mod records;
mod run;
mod seamless_run;
pub mod targets;

use self::records::{Records, UnfinishedMoves, text_of};
use self::run::{FIRST_PAUSE, Run, Stop};
pub use self::run::{Limits, MoveError, MoveOrder};
use self::targets::{Targets, next_target, same_families};

/// For how many seconds after a move was recorded the status of a load balancer is restored. Later its addresses may
/// belong to another load balancer, and then only its controller may write the status.
const STATUS_LASTS: i64 = 120;

/// Moves Services. All clones share the unfinished moves.
#[derive(Clone)]
pub struct Mover {
    client: Client,
    pub records: Records,
    pub limits: Limits,
    size: Size,
    pub unfinished: UnfinishedMoves,
}

impl Mover {
    /// A mover which records its moves in `namespace`, the server's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        let (records, unfinished) = (Records::new(client.clone(), namespace), UnfinishedMoves::default());
        Self { client, records, limits: Limits::default(), size: Size::Large, unfinished }
    }

    #[must_use]
    pub fn up_to(&self, size: Size) -> Self {
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
        match run.read("read").await? {
            Some(service) => run.finish_plain(service, journal).await,
            None => run.discard().await.map(|()| Outcome::Unmoved(Unmoved::Gone)),
        }
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
            if let Some(taken) = self.first_taken(&from, &to).await? {
                self.refused.push(taken);
                match next_target(self.targets, &self.refused, &from).await {
                    Some(next) => to = next,
                    None => return Err(Unmoved::NoTarget { taken: self.refused.clone() }.into()),
                }
            } else {
                let plan = self.plan_method(&service, &to, order).await?;
                self.ordered = Some(to.clone());
                if let Some(ended) = self.release(service, &to, order, plan).await? {
                    return Ok(ended);
                }
            }
            service = self.read_to_begin().await?;
            // A user may have set the address by hand since the Service was looked at.
            if may_be_set_by_hand(&service) && !was_by_hand {
                return Err(Unmoved::Unfit("its address was set by hand meanwhile").into());
            }
        }
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
        journal.reason.clone_from(&order.reason);
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
        if let Err(refusal) = self.record_journal(&journal).await {
            return self.unreleased(&refusal).await;
        }
        if let Some(plan) = &journal.seamless {
            self.progress = Progress::of_first_run();
            return Ok(Some(self.finish_seamless(&journal, plan).await?));
        }
        // The endpoints may have become ready since the Service was looked at. Only here no other request is between.
        if !order.interrupts && self.is_reachable().await? {
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
        self.wait("release", refusal).await?;
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
            let deleted = self.mover.records.delete(self.uid).await;
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
    async fn create_record(&self, journal: &Journal) -> Result<(), Refusal> {
        let (path, record) = self.mover.records.creation(journal);
        let Err(refusal) = self.send(Method::POST, &path, record).await else { return Ok(()) };
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
                self.wait(name, &refusal).await?;
                self.read(name).await
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
        step::ending(service, journal, to, &[notes, self.progress.notes()].concat())
    }

    /// How the move of the Service, which is stored like this, has ended; `None` if no step was left.
    fn reached(&mut self, service: &Value) -> Option<Outcome> {
        Some(match self.reached.take()? {
            Outcome::Overtaken { from, why, .. } => Outcome::Overtaken { from, now: addresses(service), why },
            reached => reached,
        })
    }
}
