//! Gives a Service an address after its old one was released.

use serde_json::Value;

use super::Run;
use super::attempt::Attempt;
use super::journal::Journal;
use super::refusal::Refusal;
use super::step;
use super::targets::Targets;

/// The result of an attempt to give the Service an address.
pub(super) enum AssignResult {
    /// The Service has the address. Contains the Service as the API server stored it.
    Done(Value),
    /// The attempt was refused, and there is another one to make.
    Again,
}

impl Run<'_> {
    /// Gives the Service an address, or prepares another attempt if this one is refused.
    ///
    /// # Errors
    /// The refusal, if there is no other attempt to make now.
    pub(super) async fn assign(
        &mut self,
        service: &Value,
        journal: &Journal,
        targets: &dyn Targets,
    ) -> Result<AssignResult, Refusal> {
        let (ordered, refused) = (self.ordered.as_deref(), self.refused.as_slice());
        let resumed = ordered.is_none();
        let attempt = match &mut self.attempt {
            Some(attempt) => attempt,
            none => none.insert(Attempt::first(journal, ordered, refused, targets).await),
        };
        let body = step::assigned(service, journal, &attempt.target, &attempt.without);
        if resumed
            && let Err(error) = targets.check_with_policy(&body).await
            && attempt.after_policy_refusal(journal, step::has_external(&body), &error.to_string())
        {
            return Ok(AssignResult::Again);
        }
        let refusal = match self.put("", &body).await {
            Ok(written) => return Ok(AssignResult::Done(written)),
            Err(refusal) => refusal,
        };
        // A creation that got no answer may be carried out late. Then the temporary Service is deleted first.
        if let Refusal::Address { .. } = refusal
            && let Some(plan) = &journal.seamless
            && self.is_held_by_temporary(journal, plan).await
        {
            return Err(Refusal::Conflict);
        }
        let patience = self.mover.limits.ports;
        let Some(attempt) = &mut self.attempt else { return Err(refusal) };
        let another = match &refusal {
            Refusal::Address { which, reason } => attempt.after_address(journal, *which, reason, targets).await,
            Refusal::Refused(reason) => attempt.after_refusal(journal, reason),
            Refusal::Port { which, reason } => attempt.after_port(*which, reason, patience),
            _ => return Err(refusal),
        };
        tracing::debug!(service = %self.label(), %refusal, another, "the address was refused");
        match (another, refusal) {
            (true, _) => Ok(AssignResult::Again),
            // Nothing else can be tried now. The move stays recorded, and is tried again later, at growing intervals.
            (false, refusal @ Refusal::Refused(_)) => Err(refusal),
            (false, refusal) => Err(Refusal::Trouble(refusal.to_string())),
        }
    }
}
