//! The state of the watch of each kind, and how it changes.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::time::Instant;

use crate::api_error::error_chain;
use crate::repeated_failures;

use super::super::kinds::{Kind, own_name};
use super::Inner;

/// The state of the watch of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The first list is not complete.
    Syncing,
    /// The list is complete, and changes are watched.
    Synced,
    /// The cluster does not have this kind.
    Absent,
    /// The watch fails at present.
    Failing {
        /// When it began to fail.
        since: Instant,
        /// The error of the client.
        reason: String,
        /// Whether there is a complete list from before.
        synced: bool,
    },
}

impl State {
    /// Why the watch of this kind is not in sync; `None` if it is.
    pub(super) fn lag(&self, (api_version, kind): &Kind) -> Option<String> {
        match self {
            Self::Synced | Self::Absent => None,
            Self::Syncing => Some(format!("{api_version}/{kind} is being listed")),
            Self::Failing { since, reason, .. } => {
                let seconds = since.elapsed().as_secs();
                Some(format!("{api_version}/{kind} could not be watched for {seconds} s: {reason}"))
            }
        }
    }
}

impl Inner {
    pub(super) fn set_synced(&self, kind: &Kind) {
        let mut states = self.states();
        if states.get(kind) == Some(&State::Synced) {
            return;
        }
        let before = states.insert(kind.clone(), State::Synced);
        drop(states);
        match before {
            // The first watch that recovers tells it for all that failed for the same reason.
            Some(State::Failing { reason, .. }) if let Some(line) = repeated_failures::end(&reason) => {
                let not_logged = line.not_logged;
                tracing::info!(api_version = kind.0, kind = kind.1, not_logged, "followed again");
            }
            _ => tracing::debug!(api_version = kind.0, kind = kind.1, "listed"),
        }
        self.snapshot.write().unwrap_or_else(PoisonError::into_inner).add_api(&kind.0, &kind.1);
    }

    pub(super) fn set_absent(&self, kind: &Kind) {
        self.forget_others(kind, &BTreeSet::new());
        let before = self.states().insert(kind.clone(), State::Absent);
        if before == Some(State::Absent) {
            return;
        }
        tracing::info!(api_version = kind.0, kind = kind.1, "the cluster does not have this kind");
        // Addresses in use are known from Services too, so that look-up always gets an answer.
        if own_name(kind) != "IPAddress" {
            self.snapshot.write().unwrap_or_else(PoisonError::into_inner).remove_api(&kind.0, &kind.1);
        }
    }

    pub(super) fn set_failing(&self, kind: &Kind, error: &dyn std::error::Error) {
        let reason = error_chain(error);
        self.metrics.watch_error(&kind.1);
        if let Some(line) = repeated_failures::line(&reason) {
            let not_logged = line.not_logged;
            tracing::warn!(
                api_version = kind.0,
                kind = kind.1,
                error = reason,
                not_logged,
                "watch failed, trying again"
            );
        }
        let mut states = self.states();
        let (since, synced) = match states.get(kind) {
            Some(State::Failing { since, synced, .. }) => (*since, *synced),
            before => (Instant::now(), matches!(before, Some(State::Synced))),
        };
        states.insert(kind.clone(), State::Failing { since, reason, synced });
    }
}
