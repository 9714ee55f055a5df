//! Tells whether another server is at work that does not know which addresses are in flight here.
//!
//! Every server tries to get the leader's Lease, so that Lease shows another server at no extra cost.

use std::time::Duration;

use tokio::time::Instant;

use super::identity::{Identity, Role};
use super::lease::Seen;

/// For how many renewals a Lease must stay unchanged until it is clear that nobody renews it.
const MISSED: u32 = 3;

/// Whether another server is at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompetingServer {
    /// There may be one: it is not known yet whether somebody renews the Lease of this holder. `None` until the Lease
    /// was read.
    Unclear(Option<Identity>),
    /// There is no other server, or this one leads.
    None,
    /// There is another server: it was seen to renew the Lease.
    Lives(Identity),
}

impl CompetingServer {
    /// Decides from what was seen of the Lease, which its holder renews every `retry`. `clusterip move` is not a
    /// competing server, because it hands out nothing beside a server.
    pub(super) fn of(seen: Option<&Seen>, me: &Identity, retry: Duration, now: Instant) -> Self {
        let Some((seen, holder)) = seen.and_then(|seen| Some((seen, Identity::of(seen.holder()?)))) else {
            return Self::None;
        };
        if holder == *me || holder.role() != Some(Role::Serve) {
            Self::None
        } else if seen.changed {
            Self::Lives(holder)
        } else if now.saturating_duration_since(seen.since) < MISSED * retry {
            Self::Unclear(Some(holder))
        } else {
            Self::None
        }
    }

    /// Why a server that keeps what is in flight in its own memory is not ready, and what to do; `None` if it is.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Unclear(None) => {
                Some("another server may be at work: the lease of the leader is yet to be read".into())
            }
            Self::Unclear(Some(holder)) => {
                Some(format!("another server, {holder}, may be at work: whether it renews its lease is being watched"))
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
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    const RETRY: Duration = Duration::from_secs(2);

    #[test]
    fn a_competing_server_is_a_server_that_renews_the_lease() {
        let me = Identity::with("me", Role::Serve, 1);
        let (server, mover) = (Identity::with("other", Role::Serve, 2), Identity::with("other", Role::Move, 3));
        let begin = Instant::now();
        let seen = |holder: &str, changed| {
            let spec = LeaseSpec { holder_identity: Some(holder.to_owned()), ..LeaseSpec::default() };
            Some(Seen { spec, since: begin, changed })
        };
        let rows = [
            ("no lease", None, 0, CompetingServer::None),
            ("nobody's", seen("", true), 0, CompetingServer::None),
            ("mine", seen(me.as_str(), true), 0, CompetingServer::None),
            ("one that moves by hand", seen(mover.as_str(), true), 0, CompetingServer::None),
            ("a foreign one", seen("somebody", true), 0, CompetingServer::None),
            ("found", seen(server.as_str(), false), 0, CompetingServer::Unclear(Some(server.clone()))),
            (
                "found, and still the same",
                seen(server.as_str(), false),
                5,
                CompetingServer::Unclear(Some(server.clone())),
            ),
            ("not renewed", seen(server.as_str(), false), 6, CompetingServer::None),
            ("renewed", seen(server.as_str(), true), 0, CompetingServer::Lives(server.clone())),
            ("renewed, until it can be taken", seen(server.as_str(), true), 14, CompetingServer::Lives(server.clone())),
        ];
        for (name, seen, seconds, expected) in rows {
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
