//! When a Service is looked at again after its move ended or failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clusterip_cluster::backoff::pause_after;
use clusterip_cluster::lookups::snapshot::StoredService;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::outcome::{Outcome, Size, Unmoved};

use super::{Large, Next, REPORTED, Reconciler, SILENCE, STALE, UNFINISHED};
use crate::services::misplaced::{AskedBy, Impact, Misplaced};
use crate::services::mover::MoveError;
use crate::services::service_metrics::StayReason;

/// The longest pause between two tries of a move that fails.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Consecutive failures to move a Service, or to remove the annotation that asks for the move.
pub(super) struct Failures {
    count: u32,
    /// The move is not tried again before this time, whatever the author of the Service writes.
    until: Instant,
}

impl Reconciler {
    /// When to look at a Service again after its move ended like this.
    pub(super) fn next_after(&self, id: &ServiceKey, ended: &Result<Outcome, MoveError>, size: Size) -> Next {
        match ended {
            _ if outgrows(ended, size) => {
                self.brakes.lock().take_back(id);
                Next::AsLarge
            }
            // The preparation itself has changed the Service, so a change is no reason to try again.
            Ok(Outcome::Unmoved(Unmoved::NotPrepared { .. })) => Next::After(REPORTED),
            // The Service is still misplaced. The next look finds in the stores why it stays.
            Ok(Outcome::Unmoved(Unmoved::Reachable)) => Next::After(STALE),
            Ok(Outcome::Unmoved(Unmoved::NoTarget { .. } | Unmoved::TooLarge)) => Next::After(UNFINISHED),
            Ok(outcome) => {
                self.clear_findings(id);
                self.found.lock().failures.remove(id);
                match outcome {
                    Outcome::Moved { .. } | Outcome::Unmoved(_) => Next::Change,
                    _ => Next::After(REPORTED),
                }
            }
            Err(MoveError::Refused { untouched: true, .. }) => {
                self.after_failure(id);
                Next::After(REPORTED)
            }
            // The Service may have no address now, so the move is tried again until it ends, at growing intervals.
            Err(error) => {
                // The API server did not answer, so this does not count as a move of the Service.
                if error.is_passing() {
                    self.brakes.lock().take_back(id);
                }
                self.after_failure(id)
            }
        }
    }

    /// Counts a failed move of a Service, or a failed removal of the annotation that asks for it, and tells when to look at
    /// the Service again.
    pub(super) fn after_failure(&self, id: &ServiceKey) -> Next {
        let mut found = self.found.lock();
        let count = found.failures.get(id).map_or(1, |failures| failures.count.saturating_add(1));
        let pause = pause_after(count, UNFINISHED, MAX_PAUSE);
        found.failures.insert(id.clone(), Failures { count, until: Instant::now() + pause });
        Next::After(pause)
    }

    /// How long to wait until a Service has been without ready endpoints for [`SILENCE`]; `None` if it may move now.
    pub(super) fn remaining_silence(&self, id: &ServiceKey, misplaced: &Misplaced) -> Option<Duration> {
        let mut found = self.found.lock();
        let answered = found.misplaced.get(id).is_some_and(|(reason, _)| *reason == StayReason::ReadyEndpoints);
        let is_silent = misplaced.impact == Impact::Unnoticed && misplaced.asked_by == AskedBy::Controller;
        if !answered || !is_silent {
            found.silent.remove(id);
            return None;
        }
        let since = *found.silent.entry(id.clone()).or_insert_with(Instant::now);
        let rest = SILENCE.saturating_sub(since.elapsed());
        (!rest.is_zero()).then_some(rest)
    }

    /// Whether a Service is known not to be able to move now: it is too large, or its move has just failed.
    pub fn is_stuck(&self, id: &ServiceKey, record: &Arc<StoredService>) -> bool {
        self.remaining_pause(id).is_some() || self.is_known_as_large(id, record)
    }

    /// Whether a Service is too large to move, was read less than [`REPORTED`] ago, and has not changed since. A change
    /// of a field that the stores do not keep shows only after that time.
    pub(super) fn is_known_as_large(&self, id: &ServiceKey, record: &Arc<StoredService>) -> bool {
        let found = self.found.lock();
        let is_same = |large: &Large| large.at.elapsed() < REPORTED && large.record.as_ptr() == Arc::as_ptr(record);
        found.large.get(id).is_some_and(is_same)
    }

    /// How long to wait before a failed move of this Service is tried again; `None` if it may be tried now.
    pub(super) fn remaining_pause(&self, id: &ServiceKey) -> Option<Duration> {
        let until = self.found.lock().failures.get(id)?.until;
        let rest = until.saturating_duration_since(Instant::now());
        (!rest.is_zero()).then_some(rest)
    }
}

/// Whether a move found its Service, or its record, larger than `size`, and goes on in a place for large Services.
pub(super) fn outgrows(ended: &Result<Outcome, MoveError>, size: Size) -> bool {
    let is_larger = match ended {
        Ok(Outcome::Unmoved(Unmoved::TooLarge)) | Err(MoveError::TooLarge(_)) => true,
        Err(MoveError::Record(_, error)) => error.too_large,
        _ => false,
    };
    is_larger && size < Size::Large
}
