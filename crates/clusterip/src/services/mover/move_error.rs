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

impl MoveError {
    /// Whether the API server did not answer, or answered with errors that pass. The Service is not the cause then.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Unfinished { .. } | Self::Record { reason: RecordError::Request { passing: true, .. }, .. } => true,
            Self::Families { .. } | Self::Refused { .. } | Self::Record { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_without_an_answer_pass() {
        struct Case {
            name: &'static str,
            error: MoveError,
            passing: bool,
        }
        let text = || "shop/web".to_owned();
        let record = |reason| MoveError::Record { service: text(), reason };
        let request = |passing| record(RecordError::Request { namespace: text(), reason: text(), passing });
        let limit = Duration::from_secs(1);
        let cases = [
            Case {
                name: "no answer within the time limit of the move",
                error: MoveError::Unfinished { service: text(), step: "read", reason: text(), limit },
                passing: true,
            },
            Case { name: "no answer about the record", error: request(true), passing: true },
            Case { name: "the record may not be read", error: request(false), passing: false },
            Case {
                name: "the record is not a journal",
                error: record(RecordError::Malformed { namespace: text(), name: text(), reason: text() }),
                passing: false,
            },
            Case {
                name: "a refused step",
                error: MoveError::Refused { service: text(), step: "read", reason: text(), untouched: true },
                passing: false,
            },
            Case {
                name: "other families",
                error: MoveError::Families { service: text(), from: text(), to: text() },
                passing: false,
            },
        ];
        for Case { name, error, passing } in cases {
            assert_eq!(error.is_passing(), passing, "{name}");
        }
    }
}
