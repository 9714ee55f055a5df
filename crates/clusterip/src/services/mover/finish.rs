//! Carries out the steps that are left of a recorded move.

use clusterip_cluster::lookups::snapshot::addresses;
use jiff::Timestamp;
use serde_json::Value;

use super::assign::AssignResult;
use super::journal::Journal;
use super::move_error::MoveError;
use super::outcome::{Outcome, Unmoved};
use super::refusal::Refusal;
use super::step::{self, Step};
use super::targets::Targets;
use super::{FIRST_PAUSE, Run, STATUS_LASTS};

impl Run<'_> {
    /// Carries out the steps that are left of a recorded move.
    pub(super) async fn finish(
        &mut self,
        mut service: Value,
        journal: &Journal,
        targets: &dyn Targets,
    ) -> Result<Outcome, MoveError> {
        if let Some(plan) = &journal.seamless {
            return self.finish_seamless(Some(service), journal, plan, targets).await;
        }
        let mut original = OriginalSteps::new(journal);
        loop {
            let next = step::next(&service, journal);
            // The record stays as long as a release without an answer may still arrive.
            if next == Step::Idle && step::may_still_begin(&service, journal) {
                return Ok(Outcome::Unmoved(Unmoved::NotBegun));
            }
            if next == Step::Idle {
                let _ = self.discard().await;
                return Ok(original.reached(&service).unwrap_or(Outcome::Unmoved(Unmoved::NotMoving)));
            }
            service = match self.carry_out_step(next, service, journal, targets, &mut original).await? {
                Some(service) => service,
                None => return self.end_gone().await,
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
                    Ok(AssignResult::Again) => return Ok(Some(service)),
                    Ok(AssignResult::Done(written)) => ("assign", Ok(written)),
                    Err(refusal) => ("assign", Err(refusal)),
                }
            }
            Step::RestoreStatus => {
                let result = self.put("/status", &step::with_status(&service, journal)).await;
                original.skip_status = result.is_ok();
                ("status", result)
            }
            Step::Cleanup => {
                original.reached = Some(self.ending(&service, journal));
                let result = self.put("", &step::cleaned_up(&service, journal, original.keep_owners)).await;
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

    /// Ends the move of a Service that is gone. Its record is useless, and is deleted.
    pub(super) async fn end_gone(&self) -> Result<Outcome, MoveError> {
        let _ = self.discard().await;
        Ok(Outcome::Unmoved(Unmoved::Gone))
    }

    /// How the move ends if the Service stays as it is.
    fn ending(&self, service: &Value, journal: &Journal) -> Outcome {
        let (to, notes) = match &self.attempt {
            Some(attempt) => (attempt.addresses(), attempt.notes.as_slice()),
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
