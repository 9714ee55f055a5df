//! How a move ended, and how the API server's answers to its requests are interpreted.

use std::net::IpAddr;

use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};
use thiserror::Error;

/// The size of a Service in bytes of JSON, in which a small map counts more than its text. A move takes many times the
/// memory, so few large Services move at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    Usual,
    Large,
}

impl Size {
    /// `None` for a Service that is too large to move.
    pub fn of(bytes: usize) -> Option<Self> {
        [Self::Usual, Self::Large].into_iter().find(|size| bytes <= size.most())
    }

    pub const fn most(self) -> usize {
        match self {
            Self::Usual => 16 << 10,
            Self::Large => 256 << 10,
        }
    }

    /// The most bytes of an answer that a move of such a Service reads. A record contains the spec twice, and the API
    /// server notes which fields the move writes.
    pub const fn most_read(self) -> usize {
        2 * self.most() + Self::Usual.most()
    }
}

/// How a move ended. The Service has an address, and nothing of the move is left on it. `why` is why the move was
/// ordered, and `notes` what did not go as ordered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Outcome {
    /// The Service has the addresses that were ordered, or the next ones that were free.
    #[error("moved from {} to {}{}{}", shown(from), shown(to), because(why), but(notes))]
    Moved { from: Vec<IpAddr>, to: Vec<IpAddr>, why: String, notes: Vec<String> },
    /// The Service kept its old addresses, because no new ones were available.
    #[error("kept {}{}{}", shown(from), because(why), but(notes))]
    Kept { from: Vec<IpAddr>, why: String, notes: Vec<String> },
    /// Neither new addresses nor the old ones were available, so the Service has addresses that no pool contains. Only
    /// where the settings leave the choice to Kubernetes, the API server may have picked some.
    #[error(
        "moved from {} to {}, because neither a new address nor the old one is available{}{}",
        shown(from),
        shown(to),
        because(why),
        but(notes)
    )]
    Elsewhere { from: Vec<IpAddr>, to: Vec<IpAddr>, why: String, notes: Vec<String> },
    /// A user changed the Service during the move, which made the move pointless.
    #[error("another client set the address to {} during the move from {}{}", shown(now), shown(from), because(why))]
    Overtaken { from: Vec<IpAddr>, now: Vec<IpAddr>, why: String },
    /// Nothing was written.
    #[error("not moved: {0}")]
    Unmoved(Unmoved),
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unmoved {
    /// The Service does not exist, or another one has its name.
    #[error("it is gone")]
    Gone,
    /// The Service can't be moved, or need not be moved, for this reason.
    #[error("{0}")]
    Unfit(&'static str),
    /// An endpoint became ready after the move was ordered.
    #[error("an endpoint that can be reached at its present address became ready meanwhile")]
    Reachable,
    #[error("no move of it is in progress")]
    NotMoving,
    /// Its move would take too much memory.
    #[error("it has more than {} bytes, or too many maps, and such Services are not moved: delete it and create it \
        again", Size::Large.most())]
    TooLarge,
    /// The first write of its move got no answer, and may still arrive.
    #[error("its recorded move has not begun")]
    NotBegun,
    /// A seamless move was asked for. Its temporary Services are deleted. The reason has the way out.
    #[error("a seamless move can't be prepared: {reason}")]
    NotPrepared { reason: String },
    #[error(
        "it looks as if a move has begun (annotation {MOVING_ANNOTATION}, or externalName {MOVING_NAME}), but no move \
             of it is recorded, so it is left unchanged; to have it managed again, remove the annotation, and set \
             spec.type back if it is ExternalName"
    )]
    NotRecorded,
}

impl Outcome {
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Moved { .. } => "AddressMoved",
            Self::Kept { .. } => "AddressKept",
            Self::Elsewhere { .. } => "AddressMovedElsewhere",
            Self::Overtaken { .. } => "MoveOvertaken",
            Self::Unmoved(Unmoved::NotRecorded) => "MoveNotRecorded",
            Self::Unmoved(_) => "AddressNotMoved",
        }
    }

    /// Whether the outcome needs attention: it is neither the requested move, nor a move that was not needed.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Moved { notes, .. } => !notes.is_empty(),
            Self::Unmoved(
                Unmoved::Gone | Unmoved::Unfit(_) | Unmoved::Reachable | Unmoved::NotMoving | Unmoved::NotBegun,
            ) => false,
            _ => true,
        }
    }
}

/// The addresses, separated by commas, or `none`.
pub fn shown(addresses: &[IpAddr]) -> String {
    match addresses {
        [] => "none".to_owned(),
        _ => addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn because(why: &str) -> String {
    if why.is_empty() { String::new() } else { format!(": {why}") }
}

fn but(notes: &[String]) -> String {
    notes.iter().map(|note| format!("; {note}")).collect()
}

/// Why a request was not carried out, or may not have been. Contains the message of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    #[error("it is gone")]
    Gone,
    /// Another client has changed the object since it was read.
    #[error("another client changed it at every try")]
    Conflict,
    /// An address is allocated already, or in no range of the cluster. `which` is `None` if the answer does not name it.
    #[error("{reason}")]
    Address { which: Option<IpAddr>, reason: String },
    /// A node port is allocated already, for now. `which` is `None` if the answer does not name it.
    #[error("{reason}")]
    Port { which: Option<u64>, reason: String },
    /// The request can't be carried out as it is.
    #[error("{0}")]
    Refused(String),
    /// The request failed for now, and can be tried again. Unless the API server has answered, it may have been
    /// carried out.
    #[error("{0}")]
    Trouble(String),
    /// The answer is larger than [`Size::most_read`]. The request may have been carried out.
    #[error("{0}")]
    TooLarge(String),
}

impl Refusal {
    /// Whether the request may have been carried out, or may still be.
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Trouble(_) | Self::TooLarge(_))
    }

    /// Interprets an answer of the API server. It has no codes for addresses and ports that are taken, only messages.
    pub fn answer(code: u16, message: &str) -> Self {
        const ADDRESS: &str = "failed to allocate IP ";
        let reason = message.to_owned();
        let port_is_taken = match code {
            500 => "failed to allocate requested HealthCheck NodePort",
            _ => "provided port is already allocated",
        };
        match code {
            404 => Self::Gone,
            409 => Self::Conflict,
            422 if let Some((_, after)) = message.split_once(ADDRESS) => {
                Self::Address { which: after.split_once(": ").and_then(|(address, _)| address.parse().ok()), reason }
            }
            422 | 500 if message.contains(port_is_taken) => {
                let before = message.split_once(": provided port is already allocated").map(|(before, _)| before);
                Self::Port { which: before.and_then(|before| before.rsplit(' ').next()?.parse().ok()), reason }
            }
            408 | 429 | 500.. => Self::Trouble(reason),
            _ => Self::Refused(reason),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
