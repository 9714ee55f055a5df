//! Records a move, and releases the address of the Service.

use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::Value;

use super::journal::Journal;
use super::move_error::MoveError;
use super::outcome::Unmoved;
use super::records::RecordError;
use super::refusal::Refusal;
use super::seamless::Plan;
use super::seamless::progress::Progress;
use super::step;
use super::targets::Targets;
use super::{MoveOrder, Run};

/// What came of [`Run::release`].
pub(super) enum Release {
    /// The Service is released: the Service as it is now, and the journal.
    Done(Value, Box<Journal>),
    /// The Service was changed meanwhile, and must be read again.
    ReadAgain,
    /// The Service stays as it is.
    Unmoved(Unmoved),
}

impl Run<'_> {
    /// Records the move, and releases the address. A seamless move does not release the address yet.
    pub(super) async fn release(
        &mut self,
        service: &Value,
        to: &[IpAddr],
        (order, plan): (&MoveOrder, Option<Plan>),
        targets: &dyn Targets,
    ) -> Result<Release, MoveError> {
        let mut journal = step::beginning(service, to, &order.why);
        journal.reason.clone_from(&order.reason);
        journal.seamless = plan;
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
        if journal.seamless.is_some() {
            self.progress = Progress::of_first_run();
            return Ok(Release::Done(service.clone(), Box::new(journal)));
        }
        // The endpoints may have become ready since the Service was looked at. Only here no other request is between.
        if !order.interrupts && self.is_reachable(targets).await? {
            return Ok(Release::Unmoved(Unmoved::Reachable));
        }
        match self.put("", &body).await {
            Ok(written) => Ok(Release::Done(written, Box::new(journal))),
            Err(refusal) => {
                self.uncertain |= matches!(refusal, Refusal::Trouble(_));
                self.unreleased(&refusal).await
            }
        }
    }

    /// Handles a release that failed, or may have failed. The record of a move that will not begin is deleted.
    async fn unreleased(&mut self, refusal: &Refusal) -> Result<Release, MoveError> {
        if matches!(refusal, Refusal::Refused(_)) && !self.uncertain && self.recorded.take().is_some() {
            let _ = self.discard().await;
        }
        self.wait("release", refusal).await?;
        Ok(Release::ReadAgain)
    }

    /// Records the journal. Replaces a record that an earlier try of this run, or another run, wrote for this Service
    /// without beginning the move.
    async fn record_journal(&mut self, journal: &Journal) -> Result<(), Refusal> {
        let creation = || self.mover.records.creation(journal).map_err(|error| Refusal::Refused(error.to_string()));
        let mut kept = match &self.recorded {
            Some(recorded) => Some(recorded.clone()),
            None => match self.send(creation()?).await {
                Err(Refusal::Conflict) => {
                    let found = self.record().await.map_err(|error| Refusal::Trouble(error.to_string()))?;
                    // Its record is needed until its last temporary Service is deleted.
                    if found.as_ref().is_some_and(|found| found.seamless.is_some()) {
                        let reason =
                            "an earlier seamless move of it has not ended: wait for the end of its grace period";
                        return Err(Refusal::Refused(reason.to_owned()));
                    }
                    found
                }
                created => {
                    self.unanswered |= matches!(created, Err(Refusal::Trouble(_)));
                    created?;
                    Some(journal.clone())
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
        if kept.as_ref().is_some_and(|kept| !serves(kept)) {
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
    pub(super) async fn discard(&self) -> Result<(), RecordError> {
        let deleted = self.mover.records.delete(self.uid).await;
        deleted.inspect_err(|error| {
            tracing::warn!(service = %self.label(), %error, "the record of a finished move was not deleted");
        })
    }

    /// Reads the journal that is recorded for this Service.
    pub(super) async fn record(&self) -> Result<Option<Journal>, MoveError> {
        let found = self.mover.records.get(self.uid).await;
        found.map_err(|reason| MoveError::Record { service: self.label(), reason })
    }
}
