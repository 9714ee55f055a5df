//! How a move ended, and how the API server's answers to its requests are interpreted.

use std::fmt;
use std::net::IpAddr;

use clusterip_core::annotations::{MOVING_ANNOTATION, MOVING_NAME};

/// How large a Service is that moves, in bytes of JSON. A move takes many times the memory, so few large Services move at
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// As most Services are.
    Usual,
    /// As large as a Service may be that moves.
    Large,
}

impl Size {
    /// The size of a Service with so many bytes; `None` if it is too large to move.
    pub fn of(bytes: usize) -> Option<Self> {
        [Self::Usual, Self::Large].into_iter().find(|size| bytes <= size.most())
    }

    /// The most bytes of a Service of this size.
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
    /// Neither new addresses nor the old ones were available, so the Service has addresses that no pool contains. Only
    /// where the settings leave the choice to Kubernetes, the API server may have picked some.
    Elsewhere {
        /// The old addresses.
        from: Vec<IpAddr>,
        /// The addresses that it has instead.
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
    TooLarge,
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
                    Unmoved::NoTarget { .. } | Unmoved::TooLarge | Unmoved::NotPrepared { .. } | Unmoved::NotRecorded
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
                write!(
                    f,
                    "moved from {from} to {to}, because neither a new address nor the old one is available{}{}",
                    because(why),
                    but(notes)
                )
            }
            Self::Overtaken { from, now, why } => {
                let (from, now) = (shown(from), shown(now));
                write!(f, "another client set the address to {now} during the move from {from}{}", because(why))
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
            Self::TooLarge => {
                let most = Size::Large.most();
                write!(
                    f,
                    "it has more than {most} bytes, and such Services are not moved: delete it and create it again"
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

/// Why a request was not carried out, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The Service does not exist any more.
    Gone,
    /// Another client has changed the object since it was read.
    Conflict,
    /// An address is not available: it is allocated already, or in no range of the cluster.
    Address {
        /// The address; `None` if the answer does not name it.
        which: Option<IpAddr>,
        /// The message of the API server.
        reason: String,
    },
    /// A node port is not available for now: it is allocated already.
    Port {
        /// The port; `None` if the answer does not name it.
        which: Option<u64>,
        /// The message of the API server.
        reason: String,
    },
    /// The request can't be carried out as it is. Contains the message of the API server.
    Refused(String),
    /// The request failed for now, and can be tried again. Unless the API server has answered, it may have been
    /// carried out.
    Trouble(String),
    /// The answer is larger than [`Size::most_read`]. The request may have been carried out.
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
        let number_before = |text: &str| {
            message
                .split_once(text)
                .and_then(|(before, _)| before.rsplit(' ').next())
                .and_then(|port| port.parse().ok())
        };
        match code {
            404 => Self::Gone,
            409 => Self::Conflict,
            422 if message.contains(ADDRESS) => {
                let after = message.split_once(ADDRESS).map(|(_, after)| after);
                let which = after.and_then(|after| after.split_once(": ")?.0.parse().ok());
                Self::Address { which, reason }
            }
            422 if message.contains("provided port is already allocated") => {
                Self::Port { which: number_before(": provided port is already allocated"), reason }
            }
            500 if message.contains("failed to allocate requested HealthCheck NodePort") => {
                Self::Port { which: number_before(": provided port is already allocated"), reason }
            }
            408 | 429 | 500.. => Self::Trouble(reason),
            _ => Self::Refused(reason),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gone => f.write_str("it is gone"),
            Self::Conflict => f.write_str("another client changed it at every try"),
            Self::Address { reason, .. } | Self::Port { reason, .. } => f.write_str(reason),
            Self::Refused(reason) | Self::Trouble(reason) | Self::TooLarge(reason) => f.write_str(reason),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_classified_by_code_and_message() {
        struct Case {
            code: u16,
            message: &'static str,
            expected: Refusal,
        }
        let taken = "Service \"web\" is invalid: spec.clusterIPs: Invalid value: [\"172.21.1.62\",\"fd00:21::5\"]: failed to allocate IP fd00:21::5: provided IP is already allocated";
        let outside = "Service \"web\" is invalid: spec.clusterIPs: Invalid value: [\"10.1.1.1\",\"\"]: failed to allocate IP 10.1.1.1: the provided network does not match the current range";
        let port = "Service \"web\" is invalid: spec.ports[0].nodePort: Invalid value: 30080: provided port is already allocated";
        let health = "Internal error occurred: failed to allocate requested HealthCheck NodePort 31000: provided port is already allocated";
        let long = "Service \"web\" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes";
        let text = |reason: &str| reason.to_owned();
        let cases = [
            Case { code: 404, message: "", expected: Refusal::Gone },
            Case { code: 409, message: "the object has been modified", expected: Refusal::Conflict },
            Case {
                code: 422,
                message: taken,
                expected: Refusal::Address { which: "fd00:21::5".parse().ok(), reason: text(taken) },
            },
            Case {
                code: 422,
                message: outside,
                expected: Refusal::Address { which: "10.1.1.1".parse().ok(), reason: text(outside) },
            },
            Case {
                code: 422,
                message: "failed to allocate IP",
                expected: Refusal::Refused(text("failed to allocate IP")),
            },
            Case {
                code: 422,
                message: "failed to allocate IP x",
                expected: Refusal::Address { which: None, reason: text("failed to allocate IP x") },
            },
            Case { code: 422, message: port, expected: Refusal::Port { which: Some(30080), reason: text(port) } },
            Case { code: 500, message: health, expected: Refusal::Port { which: Some(31000), reason: text(health) } },
            Case { code: 422, message: long, expected: Refusal::Refused(text(long)) },
            Case { code: 403, message: "forbidden", expected: Refusal::Refused(text("forbidden")) },
            Case { code: 400, message: "bad", expected: Refusal::Refused(text("bad")) },
            Case { code: 408, message: "slow", expected: Refusal::Trouble(text("slow")) },
            Case { code: 429, message: "busy", expected: Refusal::Trouble(text("busy")) },
            Case { code: 500, message: "etcd", expected: Refusal::Trouble(text("etcd")) },
            Case { code: 503, message: "away", expected: Refusal::Trouble(text("away")) },
        ];
        for Case { code, message, expected } in cases {
            assert_eq!(Refusal::answer(code, message), expected, "{code} {message}");
        }
    }
}
