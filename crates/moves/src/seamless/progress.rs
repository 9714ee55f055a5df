//! What one run of a seamless move knows besides the stored objects: what it may do, and what the API server refused.

use super::SeamlessStep;
use super::temporary::Role;
use crate::refusal::Refusal;

/// What one run of a move knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Whether this run recorded the move. No other run creates temporary Services.
    recorded: bool,
    /// Why the preparation has failed.
    failure: Option<String>,
    tried_old: bool,
    without_trigger: bool,
    without_old: bool,
    took_old: bool,
    deleted_trigger: bool,
    /// What did not go as planned, as text for the outcome.
    notes: Vec<String>,
}

/// What follows from the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Read the objects again, and go on.
    GoOn,
    /// Wait before the next try. The move fails if the request was refused, or takes too long.
    TryAgain,
}

impl Progress {
    /// The run that recorded the move.
    pub fn of_first_run() -> Self {
        Self { recorded: true, ..Self::default() }
    }

    /// A run that finishes what another one began.
    pub fn of_later_run() -> Self {
        Self::default()
    }

    /// Stops the preparation.
    pub fn fail(&mut self, reason: String) {
        if self.failure.is_none() {
            self.notes.push(reason.clone());
            self.failure = Some(reason);
        }
    }

    /// Why the preparation has failed; `None` if it has not.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// What did not go as planned.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether this run recorded the move.
    pub fn is_of_first_run(&self) -> bool {
        self.recorded
    }

    pub(super) fn may_begin(&self) -> bool {
        self.recorded && self.failure.is_none()
    }

    pub(super) fn old_was_tried(&self) -> bool {
        self.tried_old
    }

    pub(super) fn goes_without_trigger(&self) -> bool {
        self.without_trigger
    }

    /// Whether this run leaves `old` as it is: it was refused the old addresses, or has taken them. If another client
    /// then releases them again and again, the move goes on without them.
    pub(super) fn is_done_with_old(&self) -> bool {
        self.without_old || self.took_old
    }

    pub(super) fn trigger_was_deleted(&self) -> bool {
        self.deleted_trigger
    }

    /// Notes the answer to the request of a step, and returns what follows.
    pub fn answered(&mut self, step: &SeamlessStep, answer: Result<(), &Refusal>) -> Reaction {
        let refusal = match answer {
            Ok(()) => {
                self.tried_old |= *step == SeamlessStep::TryOld;
                self.took_old |= *step == SeamlessStep::TakeOld;
                self.deleted_trigger |= *step == SeamlessStep::Delete(Role::Trigger);
                return Reaction::GoOn;
            }
            Err(refusal) => refusal,
        };
        let is_unanswered = matches!(refusal, Refusal::Trouble(_));
        match (step, refusal) {
            (SeamlessStep::Create(Role::Trigger), Refusal::Trouble(_)) => {}
            // Another client has changed the object, or deleted it.
            (SeamlessStep::Create(Role::New | Role::Old), Refusal::Gone) => self.fail(refusal.to_string()),
            (_, Refusal::Conflict) => {}
            (
                SeamlessStep::Delete(_) | SeamlessStep::ReleaseOld | SeamlessStep::TakeOld | SeamlessStep::TryOld,
                Refusal::Gone,
            ) => {}
            (SeamlessStep::Create(Role::Trigger), _) => self.without_trigger = true,
            // As long as the Service has the old address, this is the expected answer.
            (SeamlessStep::TryOld, Refusal::Address { .. } | Refusal::Port { .. }) => self.tried_old = true,
            (SeamlessStep::TakeOld, _) if !is_unanswered => {
                self.without_old = true;
                self.notes.push(format!("its old address stopped answering at once: {refusal}"));
            }
            (
                SeamlessStep::Create(Role::New | Role::Old)
                | SeamlessStep::ReleaseOld
                | SeamlessStep::TryOld
                | SeamlessStep::Release,
                _,
            ) if !is_unanswered => self.fail(refusal.to_string()),
            _ => return Reaction::TryAgain,
        }
        if is_unanswered { Reaction::TryAgain } else { Reaction::GoOn }
    }
}
