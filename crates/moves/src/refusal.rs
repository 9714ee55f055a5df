//! Interprets the API server's answers to the requests of a move.

use std::net::IpAddr;

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
}

impl Refusal {
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
            Self::Refused(reason) | Self::Trouble(reason) => f.write_str(reason),
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
