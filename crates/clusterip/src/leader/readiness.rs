//! Why a server is not ready: the API server does not answer, or another server runs beside this one. The reads of the
//! leader's Lease, every 2 s, show both. A watch of an API server that hangs is silent.

use std::time::Duration;

use clusterip_failover::leases::{Identity, ObservedLease, Role, holder};
use tokio::time::Instant;

/// How long the API server may give no answer: at least two requests for the Lease have failed by then.
pub const MAX_SILENCE: Duration = Duration::from_secs(15);

/// So many refused connections in a row show that the API server is down. One may be its restart.
const MAX_REFUSED: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub struct Contact {
    pub last: Instant,
    pub refused: u32,
}

impl Contact {
    pub fn now() -> Self {
        Self { last: Instant::now(), refused: 0 }
    }

    pub fn problem(self, now: Instant) -> Option<String> {
        let silence = now.saturating_duration_since(self.last);
        (silence > MAX_SILENCE || self.refused >= MAX_REFUSED).then(|| {
            format!(
                "the API server has not answered for {} s: the Lease of the leader could not be read",
                silence.as_secs()
            )
        })
    }
}

/// A Lease counts as abandoned if it stays unchanged for the time of this many renewals.
const MISSED: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompetingServer {
    /// It is not known yet whether this holder renews the Lease; `None` until the Lease was read.
    Unclear(Option<Identity>),
    /// There is no other server, or this one leads.
    None,
    /// There is another server: it was seen to renew the Lease.
    Lives(Identity),
}

impl CompetingServer {
    /// `clusterip move` does not compete: while a server runs, it hands out no addresses.
    pub(super) fn of(seen: Option<&ObservedLease>, me: &Identity, retry: Duration, now: Instant) -> Self {
        let Some((seen, holder)) = seen.and_then(|seen| Some((seen, Identity::of(holder(&seen.value)?)))) else {
            return Self::None;
        };
        if holder == *me || holder.role() != Some(Role::Serve) {
            Self::None
        } else if seen.changed {
            Self::Lives(holder)
        } else if !seen.is_unchanged_for(MISSED * retry, now) {
            Self::Unclear(Some(holder))
        } else {
            Self::None
        }
    }

    /// Why a server that records addresses in flight only in its memory is not ready, and what to do.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Unclear(None) => {
                Some("another server may be at work: the Lease of the leader is yet to be read".into())
            }
            Self::Unclear(Some(holder)) => {
                Some(format!("another server, {holder}, may be at work: whether it renews its Lease is being watched"))
            }
            Self::Lives(holder) => Some(format!(
                "another server, {holder}, is at work and leads; both would hand out the same addresses: stop one of \
                 them, or start all of them with --claims lease"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    mod contact {
        use super::super::*;

        #[test]
        fn a_server_is_not_ready_if_the_api_server_is_silent() {
            struct Case {
                seconds: u64,
                refused: u32,
                expected: Option<&'static str>,
            }
            let cases = [
                Case { seconds: 0, refused: 0, expected: None },
                Case { seconds: 15, refused: 1, expected: None },
                Case {
                    seconds: 4,
                    refused: 2,
                    expected: Some(
                        "the API server has not answered for 4 s: the Lease of the leader could not be read",
                    ),
                },
                Case {
                    seconds: 16,
                    refused: 0,
                    expected: Some(
                        "the API server has not answered for 16 s: the Lease of the leader could not be read",
                    ),
                },
            ];
            let last = Instant::now();
            for Case { seconds, refused, expected } in cases {
                let problem = Contact { last, refused }.problem(last + Duration::from_secs(seconds));
                assert_eq!(problem.as_deref(), expected, "after {seconds} s, {refused} refused");
            }
        }
    }

    mod competing_server {
        use k8s_openapi::api::coordination::v1::LeaseSpec;

        use super::super::*;

        const RETRY: Duration = Duration::from_secs(2);

        #[test]
        fn a_competing_server_is_a_server_that_renews_the_lease() {
            struct Case {
                name: &'static str,
                seen: Option<ObservedLease>,
                seconds: u64,
                expected: CompetingServer,
            }
            let me = Identity::with("me", Role::Serve, 1);
            let (server, mover) = (Identity::with("other", Role::Serve, 2), Identity::with("other", Role::Move, 3));
            let begin = Instant::now();
            let seen = |holder: &str, changed| {
                let spec = LeaseSpec { holder_identity: Some(holder.to_owned()), ..LeaseSpec::default() };
                Some(ObservedLease { value: spec, since: begin, changed })
            };
            let cases = [
                Case { name: "no Lease", seen: None, seconds: 0, expected: CompetingServer::None },
                Case {
                    name: "a Lease without a holder",
                    seen: seen("", true),
                    seconds: 0,
                    expected: CompetingServer::None,
                },
                Case {
                    name: "its own Lease",
                    seen: seen(me.as_str(), true),
                    seconds: 0,
                    expected: CompetingServer::None,
                },
                Case {
                    name: "`clusterip move`",
                    seen: seen(mover.as_str(), true),
                    seconds: 0,
                    expected: CompetingServer::None,
                },
                Case {
                    name: "a Lease of another program",
                    seen: seen("another-program", true),
                    seconds: 0,
                    expected: CompetingServer::None,
                },
                Case {
                    name: "first seen",
                    seen: seen(server.as_str(), false),
                    seconds: 0,
                    expected: CompetingServer::Unclear(Some(server.clone())),
                },
                Case {
                    name: "not renewed for 5 s",
                    seen: seen(server.as_str(), false),
                    seconds: 5,
                    expected: CompetingServer::Unclear(Some(server.clone())),
                },
                Case {
                    name: "not renewed for 6 s",
                    seen: seen(server.as_str(), false),
                    seconds: 6,
                    expected: CompetingServer::None,
                },
                Case {
                    name: "renewed",
                    seen: seen(server.as_str(), true),
                    seconds: 0,
                    expected: CompetingServer::Lives(server.clone()),
                },
                Case {
                    name: "renewed 14 s ago",
                    seen: seen(server.as_str(), true),
                    seconds: 14,
                    expected: CompetingServer::Lives(server.clone()),
                },
            ];
            for Case { name, seen, seconds, expected } in cases {
                let now = begin + Duration::from_secs(seconds);
                assert_eq!(CompetingServer::of(seen.as_ref(), &me, RETRY, now), expected, "{name}");
            }
        }

        #[test]
        fn the_problem_says_what_to_do() {
            let server = Identity::with("other", Role::Serve, 2);
            assert_eq!(CompetingServer::None.problem(), None);
            for found in [CompetingServer::Unclear(None), CompetingServer::Unclear(Some(server.clone()))] {
                assert!(found.problem().is_some_and(|problem| problem.contains("may be at work")), "{found:?}");
            }
            assert_eq!(
                CompetingServer::Lives(server).problem().as_deref(),
                Some(
                    "another server, other_serve_0000000000000002, is at work and leads; both would hand out the same \
             addresses: stop one of them, or start all of them with --claims lease"
                )
            );
        }
    }
}
