//! The steps of a plain move: records it, releases the old address of the Service, gives it a new one, and restores the
//! rest.

use std::net::IpAddr;
use std::sync::Arc;

use clusterip_cluster::lookups::snapshot::addresses;
use clusterip_moves::journal::{Journal, Plan};
use clusterip_moves::outcome::{Outcome, Refusal, Unmoved};
use clusterip_moves::seamless::Progress;
use clusterip_moves::step::{self, Step};
use http::Method;
use jiff::Timestamp;
use serde_json::Value;

use super::records::text_of;
use super::run::{FIRST_PAUSE, MoveError, MoveOrder, Run, Stop};
use super::targets::{Attempt, Targets};

/// For how many seconds after a move was recorded the status of a load balancer is restored.
const STATUS_LASTS: i64 = 120;

impl Run<'_> {
    /// Records the move, and releases the address. A seamless move does not release the address yet. Returns the
    /// Service as it is now, and the journal; `None` if the Service was changed meanwhile, and must be read again.
    pub(super) async fn release(
        &mut self,
        service: Value,
        to: &[IpAddr],
        (order, plan): (&MoveOrder, Option<Plan>),
        targets: &dyn Targets,
    ) -> Result<Option<(Value, Arc<Journal>)>, Stop> {
        let mut journal = step::beginning(&service, to, &order.why);
        journal.reason.clone_from(&order.reason);
        journal.seamless = plan;
        let body = text_of(step::released(&service, &journal));
        // Each copy of the Service that is kept during a request counts for all Services that move at once.
        let service = journal.seamless.is_some().then_some(service);
        match self.put("?dryRun=All", body.clone()).await {
            Ok(tried) => {
                journal.recorded_at = Timestamp::now().as_second();
                journal.released = tried.get("spec").and_then(Value::as_object).cloned().unwrap_or_default();
            }
            Err(refusal) => return Ok(self.unreleased(&refusal).await?),
        }
        let journal = Arc::new(journal);
        if let Err(refusal) = self.record_journal(&journal).await {
            return Ok(self.unreleased(&refusal).await?);
        }
        if let Some(service) = service {
            self.progress = Progress::of_first_run();
            return Ok(Some((service, journal)));
        }
        // The endpoints may have become ready since the Service was looked at. Only here no other request is between.
        if !order.interrupts && self.is_reachable(targets).await? {
            return Err(Stop::Unmoved(Unmoved::Reachable));
        }
        match self.put("", body).await {
            Ok(written) => Ok(Some((written, journal))),
            Err(refusal) => {
                self.note_unanswered(&refusal);
                Ok(self.unreleased(&refusal).await?)
            }
        }
    }

    /// Handles a release that failed, or may have failed. The record of a move that will not begin is deleted.
    async fn unreleased<T>(&mut self, refusal: &Refusal) -> Result<Option<T>, MoveError> {
        if matches!(refusal, Refusal::Refused(_)) && self.requests_ended() && self.recorded.take().is_some() {
            let _ = self.discard().await;
        }
        self.wait("release", refusal).await?;
        Ok(None)
    }

    /// Records the journal. Replaces a record that an earlier try of this run, or another run, wrote for this Service
    /// without beginning the move.
    async fn record_journal(&mut self, journal: &Arc<Journal>) -> Result<(), Refusal> {
        let (path, record) = self.shared.records.creation(journal);
        self.shared.unfinished.add(self.uid, self.id, true);
        let mut kept = match &self.recorded {
            Some(recorded) => Some(Arc::clone(recorded)),
            None => match self.send(Method::POST, &path, record.clone()).await {
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
                created => {
                    self.created(created).await?;
                    Some(Arc::clone(journal))
                }
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
            let deleted = self.shared.records.delete(self.uid).await;
            deleted.map_err(|error| Refusal::Trouble(error.to_string()))?;
            kept = None;
        }
        if kept.is_none() {
            let created = self.send(Method::POST, &path, record).await;
            self.created(created).await?;
        }
        self.recorded = Some(Arc::clone(journal));
        Ok(())
    }

    /// Handles the answer to the creation of a record, which contains the record. One that is too large to read could
    /// not finish its move, so it is deleted before the move begins.
    async fn created(&self, answer: Result<Vec<u8>, Refusal>) -> Result<(), Refusal> {
        match answer {
            Ok(_) => {}
            Err(refusal @ Refusal::TooLarge(_)) => {
                let _ = self.discard().await;
                return Err(refusal);
            }
            Err(refusal) => {
                self.note_unanswered(&refusal);
                return Err(refusal);
            }
        }
        Ok(())
    }

    /// Gives the Service an address, and returns it as the API server stored it; `None` if this attempt is refused, and
    /// there is another one to make. The refusal is an error if there is no other attempt to make now.
    async fn assign(
        &mut self,
        service: &Value,
        journal: &Journal,
        targets: &dyn Targets,
    ) -> Result<Option<Value>, Refusal> {
        let (ordered, refused) = (self.ordered.as_deref(), self.refused.as_slice());
        let resumed = ordered.is_none();
        let attempt = match &mut self.attempt {
            Some(attempt) => attempt,
            none => none.insert(Attempt::first(journal, ordered, refused, targets).await),
        };
        let body = step::assigned(service, journal, &attempt.target, &attempt.without);
        if resumed
            && let Some(bare) = step::without_external(&body)
            && let Err(reason) = targets.check_update(&bare, &body).await
        {
            attempt.leave_out_external(&reason);
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
        let (patience, service) = (self.shared.limits.ports, self.label());
        let Some(attempt) = &mut self.attempt else { return Err(refusal) };
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
    pub(super) async fn finish_plain(
        &mut self,
        mut service: Value,
        journal: &Journal,
        targets: &dyn Targets,
    ) -> Result<Outcome, MoveError> {
        let mut original = OriginalSteps::new(journal);
        loop {
            let next = step::next(&service, journal);
            // The record stays as long as a release without an answer may still arrive.
            if next == Step::Idle && step::may_still_begin(&service, journal) && !self.requests_ended() {
                self.rest_until_requests_end();
                return Ok(Outcome::Unmoved(Unmoved::NotBegun));
            }
            if next == Step::Idle {
                let discarded = self.discard().await;
                return match original.reached(&service) {
                    Some(reached) => Ok(reached),
                    None => discarded.map(|()| Outcome::Unmoved(Unmoved::NotMoving)),
                };
            }
            service = match self.carry_out_step(next, service, journal, targets, &mut original).await? {
                Some(service) => service,
                None => return self.discard().await.map(|()| Outcome::Unmoved(Unmoved::Gone)),
            };
        }
    }

    /// Carries out one step on the Service. Returns the Service as it is stored then; `None` if it is gone.
    pub(super) async fn carry_out_step(
        &mut self,
        mut next: Step,
        service: Value,
        journal: &Journal,
        targets: &dyn Targets,
        original: &mut OriginalSteps,
    ) -> Result<Option<Value>, MoveError> {
        if next == Step::RestoreStatus
            && (original.skip_status || !may_restore_status(&service, journal, targets).await)
        {
            next = Step::Cleanup;
        }
        let (name, result) = match next {
            Step::Idle => return Ok(Some(service)),
            Step::Assign => {
                // A user may have removed all traces of the move. Then it has ended like this.
                original.reached = Some(self.ending(&service, journal));
                match self.assign(&service, journal, targets).await {
                    Ok(None) => return Ok(Some(service)),
                    Ok(Some(written)) => ("assign", Ok(written)),
                    Err(refusal) => ("assign", Err(refusal)),
                }
            }
            Step::RestoreStatus => {
                let result = self.put("/status", text_of(step::with_status(&service, journal))).await;
                original.skip_status = result.is_ok();
                ("status", result)
            }
            Step::Cleanup => {
                original.reached = Some(self.ending(&service, journal));
                let result = self.put("", text_of(step::cleaned_up(&service, journal, original.keep_owners))).await;
                // If the API server rejects the restored owners, the present ones stay, so that the move ends.
                if matches!(result, Err(Refusal::Refused(_))) && !original.keep_owners {
                    original.keep_owners = true;
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

    /// How the move ends if the Service stays as it is.
    fn ending(&self, service: &Value, journal: &Journal) -> Outcome {
        let (to, notes) = match &self.attempt {
            Some(attempt) => (attempt.wanted(), attempt.notes.as_slice()),
            None => (journal.to.as_slice(), [].as_slice()),
        };
        step::ending(service, journal, to, &[notes, self.progress.notes()].concat())
    }
}

/// Whether the recorded status may be written to the Service, as it was just stored.
async fn may_restore_status(service: &Value, journal: &Journal, targets: &dyn Targets) -> bool {
    if !journal.load_balancer.as_ref().is_some_and(|old| targets.may_show(old)) {
        return false;
    }
    let recorded = step::recorded_ips(journal);
    recorded.is_empty() || step::may_restore_status(journal, &targets.of_others(service, &recorded).await)
}

/// What the steps on the Service itself have found out so far.
pub(super) struct OriginalSteps {
    /// Whether the status is not restored.
    skip_status: bool,
    /// Whether the field owners stay as they are.
    keep_owners: bool,
    /// How the move ends if no step follows.
    reached: Option<Outcome>,
}

impl OriginalSteps {
    pub(super) fn new(journal: &Journal) -> Self {
        // Later the addresses may belong to another load balancer, and then only its controller may write the status.
        let age = Timestamp::now().as_second() - journal.recorded_at;
        let skip_status = !(-STATUS_LASTS..=STATUS_LASTS).contains(&age);
        Self { skip_status, keep_owners: false, reached: None }
    }

    /// How the move has ended; `None` if no step was left.
    pub(super) fn reached(self, service: &Value) -> Option<Outcome> {
        Some(match self.reached? {
            Outcome::Overtaken { from, why, .. } => Outcome::Overtaken { from, now: addresses(service), why },
            reached => reached,
        })
    }
}
