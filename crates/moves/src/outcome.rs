//! How a move ended.

use std::fmt;
use std::net::IpAddr;

use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};

/// The largest Service that is moved, in bytes of JSON. Sixteen moves of one namespace at once fit into the memory of
/// a server.
pub const MAX_SERVICE_BYTES: usize = 256 << 10;

/// How a move ended. The Service has an address, and nothing of the move is left on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The Service has the addresses that were ordered, or the next ones that were free.
    Moved {
        /// The old addresses.
        from: Vec<IpAddr>,
        /// The new addresses.
        to: Vec<IpAddr>,
        /// Why the move was ordered.
        why: String,
        /// What did not go as ordered.
        notes: Vec<String>,
    },
    /// The Service kept its old addresses, because no new ones were available.
    Kept {
        /// The old addresses.
        from: Vec<IpAddr>,
        /// Why the move was ordered.
        why: String,
        /// What prevented the move.
        notes: Vec<String>,
    },
    /// Neither new addresses nor the old ones were available, so the API server picked some.
    Elsewhere {
        /// The old addresses.
        from: Vec<IpAddr>,
        /// The addresses that the API server picked.
        to: Vec<IpAddr>,
        /// Why the move was ordered.
        why: String,
        /// What prevented the move.
        notes: Vec<String>,
    },
    /// A user changed the Service during the move, which made the move pointless.
    Overtaken {
        /// The old addresses.
        from: Vec<IpAddr>,
        /// The addresses that the Service has now.
        now: Vec<IpAddr>,
        /// Why the move was ordered.
        why: String,
    },
    /// Nothing was written.
    Unmoved(Unmoved),
}

/// Why nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmoved {
    /// The Service does not exist, or another one has its name.
    Gone,
    /// The Service is being deleted.
    BeingDeleted,
    /// The Service is headless.
    Headless,
    /// The Service is of type `ExternalName`, which has no address.
    ExternalName,
    /// The Service is of type `LoadBalancer`, which is moved on request only.
    LoadBalancer,
    /// The address was set by hand after the move was ordered.
    SetByHand,
    /// An endpoint of the Service can be reached at its present addresses. It became ready after the move was ordered.
    Reachable,
    /// The Service has no address. The API server never leaves a Service like that.
    WithoutAddress,
    /// The Service has the ordered addresses already.
    There,
    /// No target address was free.
    NoTarget {
        /// The addresses that were tried.
        taken: Vec<IpAddr>,
    },
    /// The Service shows no trace of a move.
    NotMoving,
    /// The Service is so large that its move would take too much memory.
    TooLarge {
        /// The size as JSON, in bytes.
        bytes: usize,
    },
    /// A move of the Service is recorded, but has not begun. Its first write got no answer, and may still arrive.
    NotBegun,
    /// A seamless move was asked for, and can't be prepared. Its temporary Services are deleted.
    NotPrepared {
        /// What prevents it, with the way out.
        reason: String,
    },
    /// The Service looks half moved, but no move of it is recorded. It is left alone.
    NotRecorded,
}

impl Outcome {
    /// The `reason` of the Event about this outcome.
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

    /// Whether the outcome needs attention: it is neither the requested move, nor a move that was not
    /// needed.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Moved { notes, .. } => !notes.is_empty(),
            Self::Unmoved(unmoved) => {
                matches!(
                    unmoved,
                    Unmoved::NoTarget { .. }
                        | Unmoved::TooLarge { .. }
                        | Unmoved::NotPrepared { .. }
                        | Unmoved::NotRecorded
                )
            }
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

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let but = |notes: &[String]| match notes {
            [] => String::new(),
            notes => format!("; {}", notes.join("; ")),
        };
        let because = |why: &str| if why.is_empty() { String::new() } else { format!(": {why}") };
        match self {
            Self::Moved { from, to, why, notes } => {
                write!(f, "moved from {} to {}{}{}", shown(from), shown(to), because(why), but(notes))
            }
            Self::Kept { from, why, notes } => write!(f, "kept {}{}{}", shown(from), because(why), but(notes)),
            Self::Elsewhere { from, to, why, notes } => {
                let (from, to) = (shown(from), shown(to));
                write!(f, "moved from {from} to {to}, which the API server picked{}{}", because(why), but(notes))
            }
            Self::Overtaken { from, now, why } => {
                let (from, now) = (shown(from), shown(now));
                write!(
                    f,
                    "left at {now}, since another client changed its address while it moved from {from}{}",
                    because(why)
                )
            }
            Self::Unmoved(unmoved) => write!(f, "not moved: {unmoved}"),
        }
    }
}

impl fmt::Display for Unmoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("it is gone"),
            Self::BeingDeleted => f.write_str("it is being deleted"),
            Self::Headless => f.write_str("it is headless"),
            Self::ExternalName => f.write_str("it is of type ExternalName"),
            Self::SetByHand => f.write_str("its address was set by hand meanwhile"),
            Self::Reachable => {
                f.write_str("an endpoint that can be reached at its present address became ready meanwhile")
            }
            Self::LoadBalancer => f.write_str("it is a load balancer, which is moved only on request"),
            Self::WithoutAddress => f.write_str("it has no address"),
            Self::There => f.write_str("it already has that address"),
            Self::NoTarget { taken } => write!(f, "no address to move to is free; taken: {}", shown(taken)),
            Self::NotMoving => f.write_str("no move of it is in progress"),
            Self::TooLarge { bytes } => {
                write!(
                    f,
                    "it has {bytes} bytes, and Services of more than {MAX_SERVICE_BYTES} are not moved: delete it and \
                     create it again"
                )
            }
            Self::NotBegun => f.write_str("its recorded move has not begun"),
            Self::NotPrepared { reason } => write!(f, "a seamless move can't be prepared: {reason}"),
            Self::NotRecorded => write!(
                f,
                "it looks as if a move has begun (annotation {MOVING_ANNOTATION}, or externalName {MOVING_NAME}), but no \
                 move of it is recorded, so it is left unchanged; to have it managed again, remove the annotation, and \
                 set spec.type back if it is ExternalName"
            ),
        }
    }
}
