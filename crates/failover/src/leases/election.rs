//! Decides what to do about a Lease, given the versions that were seen. Reads no clock and sends no requests.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use thiserror::Error;
use tokio::time::Instant;

use super::identity::Identity;
use super::observed::Observed;

/// The name of the leader's Lease.
pub const LEASE: &str = "clusterip-leader";

/// The durations of a leader election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long the Lease is taken for.
    pub lease: Duration,
    /// How long after its last renewal a process still leads.
    pub deadline: Duration,
    /// How often the Lease is read and renewed.
    pub retry: Duration,
}

/// Durations with which two processes could lead at once.
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
    /// Checks the durations. `lease` is how long the Lease is taken for, `deadline` how long after its last renewal a
    /// process still leads, and `retry` how often the Lease is read and renewed.
    ///
    /// # Errors
    /// [`TimingError`] unless `lease` > `deadline` > `retry` > 0.
    pub fn new(lease: Duration, deadline: Duration, retry: Duration) -> Result<Self, TimingError> {
        if lease > deadline && deadline > retry && !retry.is_zero() {
            Ok(Self { lease, deadline, retry })
        } else {
            Err(TimingError { lease, deadline, retry })
        }
    }

    /// How long a request may take: short enough to repeat it before the deadline.
    pub fn request(self) -> Duration {
        self.deadline / 2
    }

    /// The duration that is written to the Lease: in whole seconds, rounded up, so that it is never shorter than
    /// ours.
    fn seconds(self) -> i32 {
        let seconds = self.lease.as_secs() + u64::from(self.lease.subsec_nanos() > 0);
        i32::try_from(seconds).unwrap_or(i32::MAX)
    }
}

impl Default for Timing {
    /// 15 s, 10 s and 2 s, as in Kubernetes' own controllers.
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), deadline: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

/// The Lease of an election, as it was seen.
pub type ObservedLease = Observed<LeaseSpec>;

/// The holder of a Lease; `None` if it was given back.
pub fn holder(spec: &LeaseSpec) -> Option<&str> {
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// When a Lease ends, if its holder does not renew it.
pub fn end(seen: &ObservedLease, timing: Timing) -> Instant {
    let seconds = seen.value.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seen.end(seconds.map_or(timing.lease, Duration::from_secs))
}

/// What to do about a Lease.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Another process holds the Lease.
    Wait,
    /// This process holds the Lease, or may take it: write this spec.
    Write(LeaseSpec),
}

/// Decides what to do about the Lease; `None` if there is none. `now` measures durations, `clock` is written to the
/// Lease.
pub fn step(seen: Option<&ObservedLease>, me: &Identity, timing: Timing, now: Instant, clock: Timestamp) -> Step {
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
    let next = seen.value.lease_transitions.unwrap_or(0).saturating_add(1);
    match holder(&seen.value) {
        Some(found) if found == me.as_str() => Step::Write(LeaseSpec {
            lease_duration_seconds: Some(timing.seconds()),
            renew_time: Some(MicroTime(clock)),
            ..seen.value.clone()
        }),
        None => taken(seen.value.clone(), next),
        Some(_) => {
            if now < end(seen, timing) {
                Step::Wait
            } else {
                taken(seen.value.clone(), next)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use crate::leases::identity::Role;

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
    fn a_lease_is_written_only_if_free_own_or_expired() {
        struct Case {
            name: &'static str,
            spec: Option<LeaseSpec>,
            seconds: u32,
            expected: Step,
        }
        const THEN: &str = "2026-01-01T00:00:00Z";
        const NOW: &str = "2026-01-01T00:01:00Z";
        let me = Identity::with("me", Role::Serve, 1);
        let begin = Instant::now();
        let other = |seconds| lease("other", seconds, THEN, THEN, 4);
        let mine = |transitions| Step::Write(lease("me_serve_0000000000000001", Some(15), NOW, NOW, transitions));
        let cases = [
            Case { name: "a missing Lease", spec: None, seconds: 0, expected: mine(0) },
            Case { name: "a Lease without a spec", spec: Some(LeaseSpec::default()), seconds: 0, expected: mine(1) },
            Case {
                name: "a Lease that was given back",
                spec: Some(lease("", Some(1), THEN, THEN, 7)),
                seconds: 0,
                expected: mine(8),
            },
            Case {
                name: "its own Lease",
                spec: Some(lease("me_serve_0000000000000001", Some(15), THEN, THEN, 7)),
                seconds: 60,
                expected: Step::Write(lease("me_serve_0000000000000001", Some(15), THEN, NOW, 7)),
            },
            Case {
                name: "another's when first seen, although its times are old",
                spec: Some(other(Some(15))),
                seconds: 0,
                expected: Step::Wait,
            },
            Case {
                name: "another's of 15 s, after 14 s",
                spec: Some(other(Some(15))),
                seconds: 14,
                expected: Step::Wait,
            },
            Case { name: "another's of 15 s, after 15 s", spec: Some(other(Some(15))), seconds: 15, expected: mine(5) },
            Case {
                name: "another's of 60 s, after 59 s",
                spec: Some(other(Some(60))),
                seconds: 59,
                expected: Step::Wait,
            },
            Case { name: "another's of 60 s, after 60 s", spec: Some(other(Some(60))), seconds: 60, expected: mine(5) },
            Case {
                name: "another's without a duration, after 14 s",
                spec: Some(other(None)),
                seconds: 14,
                expected: Step::Wait,
            },
            Case {
                name: "another's without a duration, after 15 s",
                spec: Some(other(None)),
                seconds: 15,
                expected: mine(5),
            },
        ];
        for Case { name, spec, seconds, expected } in cases {
            let seen = spec.map(|spec| Observed::first(spec, begin));
            let done = step(seen.as_ref(), &me, Timing::default(), begin + seconds * SECOND, at(NOW));
            assert_eq!(done, expected, "{name}");
        }
    }

    #[test]
    fn the_age_of_a_lease_counts_from_when_it_was_seen_first() {
        let begin = Instant::now();
        let first = lease("other", Some(15), "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", 0);
        let renewed = lease("other", Some(15), "2026-01-01T00:00:00Z", "2026-01-01T00:00:02Z", 0);
        let seen = Observed::first(first.clone(), begin);
        assert_eq!(
            seen,
            Observed { value: first.clone(), since: begin, changed: false },
            "the first look proves nothing"
        );
        let seen = Observed::next(Some(seen), first.clone(), begin + SECOND);
        assert_eq!(seen, Observed { value: first, since: begin, changed: false }, "unchanged");
        let seen = Observed::next(Some(seen), renewed.clone(), begin + 2 * SECOND);
        assert_eq!(seen, Observed { value: renewed, since: begin + 2 * SECOND, changed: true }, "its holder lives");
    }

    #[test]
    fn durations_with_which_two_could_lead_are_refused() {
        struct Case {
            name: &'static str,
            lease: u32,
            deadline: u32,
            retry: u32,
            good: bool,
        }
        let cases = [
            Case { name: "the durations of Kubernetes", lease: 15, deadline: 10, retry: 2, good: true },
            Case { name: "a deadline as long as the lease", lease: 15, deadline: 15, retry: 2, good: false },
            Case { name: "a retry pause as long as the deadline", lease: 15, deadline: 10, retry: 10, good: false },
            Case { name: "no retry pause", lease: 15, deadline: 10, retry: 0, good: false },
        ];
        for Case { name, lease, deadline, retry, good } in cases {
            assert_eq!(Timing::new(lease * SECOND, deadline * SECOND, retry * SECOND).is_ok(), good, "{name}");
        }
    }
}
