//! What is done about a Lease, given what was seen of it: no clock, no requests.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use thiserror::Error;
use tokio::time::Instant;

use super::identity::Identity;

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub(crate) lease: Duration,
    pub(crate) deadline: Duration,
    pub(crate) retry: Duration,
}

/// Times with which two could lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a lease of {lease:?} can't be kept with a renew deadline of {deadline:?} and a try every {retry:?}: \
     each must be shorter than the one before"
)]
pub struct TimingError {
    lease: Duration,
    deadline: Duration,
    retry: Duration,
}

impl Timing {
    /// `lease`: for how long the Lease is taken; `deadline`: how long after the last renewal the leader
    /// is one; `retry`: how often it is renewed, and looked at.
    ///
    /// # Errors
    /// [`TimingError`] where they do not get shorter one after the other.
    pub fn new(lease: Duration, deadline: Duration, retry: Duration) -> Result<Self, TimingError> {
        if lease > deadline && deadline > retry && !retry.is_zero() {
            Ok(Self { lease, deadline, retry })
        } else {
            Err(TimingError { lease, deadline, retry })
        }
    }

    /// One request may not use up the time in which it could be repeated.
    pub(crate) fn request(self) -> Duration {
        self.deadline / 2
    }

    /// What stands in the Lease: whole seconds, and never less than we keep to.
    fn seconds(self) -> i32 {
        let seconds = self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0);
        i32::try_from(seconds).unwrap_or(i32::MAX)
    }
}

impl Default for Timing {
    /// 15 s, 10 s and 2 s, as Kubernetes' own controllers.
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), deadline: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

/// A Lease, and since when it has been seen as it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) spec: LeaseSpec,
    pub(crate) since: Instant,
    /// Whether it was another before: then its holder lives.
    pub(crate) changed: bool,
}

impl Seen {
    pub(crate) fn holder(&self) -> Option<&str> {
        self.spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }

    /// When it ends, if nobody renews it.
    pub(crate) fn end(&self, timing: Timing) -> Instant {
        let seconds = self.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        self.since + seconds.map_or(timing.lease, Duration::from_secs)
    }
}

/// What to do about a Lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Somebody else has it.
    Wait,
    /// It is ours to renew, or nobody's: write this.
    Write(LeaseSpec),
}

/// Adds what was read just now to what was seen before.
pub(crate) fn look(before: Option<Seen>, spec: LeaseSpec, now: Instant) -> Seen {
    match before {
        Some(before) if before.spec == spec => before,
        before => Seen { spec, since: now, changed: before.is_some() },
    }
}

/// Decides on what was seen; `None` is no Lease at all.
pub(crate) fn step(seen: Option<&Seen>, me: &Identity, timing: Timing, now: Instant, clock: Timestamp) -> Step {
    let taken = |spec: LeaseSpec, transitions| {
        Step::Write(LeaseSpec {
            holder_identity: Some(me.to_string()),
            lease_duration_seconds: Some(timing.seconds()),
            acquire_time: Some(MicroTime(clock)),
            renew_time: Some(MicroTime(clock)),
            lease_transitions: Some(transitions),
            ..spec
        })
    };
    let Some(seen) = seen else { return taken(LeaseSpec::default(), 0) };
    let next = seen.spec.lease_transitions.unwrap_or(0).saturating_add(1);
    match seen.holder() {
        Some(holder) if holder == me.as_str() => Step::Write(LeaseSpec {
            lease_duration_seconds: Some(timing.seconds()),
            renew_time: Some(MicroTime(clock)),
            ..seen.spec.clone()
        }),
        None => taken(seen.spec.clone(), next),
        Some(_) => {
            if now < seen.end(timing) {
                Step::Wait
            } else {
                taken(seen.spec.clone(), next)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use crate::controller::identity::Role;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(text: &str) -> Timestamp {
        text.parse().expect(text)
    }

    fn lease(holder: &str, seconds: Option<i32>, acquired: &str, renewed: &str, transitions: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: seconds,
            acquire_time: Some(MicroTime(at(acquired))),
            renew_time: Some(MicroTime(at(renewed))),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn what_is_done_about_a_lease() {
        const THEN: &str = "2026-01-01T00:00:00Z";
        const NOW: &str = "2026-01-01T00:01:00Z";
        let me = Identity::with("me", Role::Serve, 1);
        let begin = Instant::now();
        let other = |seconds| lease("other", seconds, THEN, THEN, 4);
        let mine = |transitions| Step::Write(lease("me_serve_0000000000000001", Some(15), NOW, NOW, transitions));
        let rows: [(&str, Option<LeaseSpec>, u32, Step); 11] = [
            ("none is taken", None, 0, mine(0)),
            ("one without a spec is taken", Some(LeaseSpec::default()), 0, mine(1)),
            ("one that was given back is taken at once", Some(lease("", Some(1), THEN, THEN, 7)), 0, mine(8)),
            (
                "our own is renewed",
                Some(lease("me_serve_0000000000000001", Some(15), THEN, THEN, 7)),
                60,
                Step::Write(lease("me_serve_0000000000000001", Some(15), THEN, NOW, 7)),
            ),
            ("another's is not taken when first seen, however old its times are", Some(other(Some(15))), 0, Step::Wait),
            ("nor while it may be renewed", Some(other(Some(15))), 14, Step::Wait),
            ("it is when it was seen unchanged for its duration", Some(other(Some(15))), 15, mine(5)),
            ("a longer one is waited for", Some(other(Some(60))), 59, Step::Wait),
            ("a longer one, too, ends", Some(other(Some(60))), 60, mine(5)),
            ("one without a duration has ours", Some(other(None)), 14, Step::Wait),
            ("and ends with it", Some(other(None)), 15, mine(5)),
        ];
        for (name, spec, seconds, expected) in rows {
            let seen = spec.map(|spec| look(None, spec, begin));
            let done = step(seen.as_ref(), &me, Timing::default(), begin + seconds * SECOND, at(NOW));
            assert_eq!(done, expected, "{name}");
        }
    }

    #[test]
    fn a_lease_is_as_old_as_it_was_seen_unchanged() {
        let begin = Instant::now();
        let first = lease("other", Some(15), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 0);
        let renewed = lease("other", Some(15), "2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z", 0);
        let seen = look(None, first.clone(), begin);
        assert_eq!(seen, Seen { spec: first.clone(), since: begin, changed: false }, "the first look proves nothing");
        let seen = look(Some(seen), first.clone(), begin + SECOND);
        assert_eq!(seen, Seen { spec: first, since: begin, changed: false }, "unchanged");
        let seen = look(Some(seen), renewed.clone(), begin + 2 * SECOND);
        assert_eq!(seen, Seen { spec: renewed, since: begin + 2 * SECOND, changed: true }, "its holder lives");
    }

    #[test]
    fn times_with_which_two_could_lead_are_refused() {
        let rows = [
            ("as Kubernetes has them", 15, 10, 2, true),
            ("a deadline as long as the lease", 15, 15, 2, false),
            ("a try as rare as the deadline", 15, 10, 10, false),
            ("without a pause", 15, 10, 0, false),
        ];
        for (name, lease, deadline, retry, good) in rows {
            assert_eq!(Timing::new(lease * SECOND, deadline * SECOND, retry * SECOND).is_ok(), good, "{name}");
        }
    }
}
