//! Why a move is not finished.

use std::time::Duration;

use thiserror::Error;

use super::records::RecordError;

/// A move that is not finished. If it is recorded by now, [`Mover::resume`](super::Mover::resume) finishes it.
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
