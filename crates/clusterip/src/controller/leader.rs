//! One process at a time: a Lease, as client-go's leader election keeps it.
//!
//! # Promises
//! - Nobody's clock is trusted. A Lease counts as abandoned only when this process has seen it
//!   unchanged for its whole duration, on a clock that never jumps.
//! - A leader stops to be one ([`Leadership`]) before anyone may take the Lease from it: it counts from
//!   the moment at which it *began* to renew, others from when they saw the result, and the renew
//!   deadline is shorter than the Lease.
//! - On an orderly stop the Lease is given back, so that the next takes it at once.
//!
//! What it can't promise: a machine that is suspended stops this process and its clock together. Whoever
//! wakes up believes to lead until its next renewal, so writers keep to preconditions
//! (`resourceVersion`), always.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error as KubeError};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// The name of the Lease.
pub const LEASE: &str = "clusterip-leader";

/// How long things take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    lease: Duration,
    deadline: Duration,
    retry: Duration,
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
    fn request(self) -> Duration {
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

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `clusterip serve`
    Serve,
    /// `clusterip move`
    Move,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Move => "move",
        }
    }
}

/// Who holds a Lease: `HOST_ROLE_RANDOM`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(String);

impl Identity {
    /// A new one for this process: no other has the same, not even one that runs in the same Pod later.
    pub fn new(role: Role) -> Self {
        let host = hostname::get().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        // The standard library seeds each of them from the system's randomness.
        Self::with(&host, role, RandomState::new().build_hasher().finish())
    }

    fn with(host: &str, role: Role, random: u64) -> Self {
        Self(format!("{host}_{}_{random:016x}", role.word()))
    }

    /// That of somebody else's Lease.
    fn of(holder: &str) -> Self {
        Self(holder.to_owned())
    }

    /// What the process is; none where the Lease is not held by one of ours.
    pub fn role(&self) -> Option<Role> {
        let mut parts = self.0.rsplit('_').skip(1);
        let word = parts.next()?;
        parts.next()?;
        [Role::Serve, Role::Move].into_iter().find(|role| role.word() == word)
    }

    /// As it stands in the Lease.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether this process leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// It does.
    Leading,
    /// It does not.
    Following {
        /// Who does, as far as this process knows.
        holder: Option<Identity>,
    },
}

impl Leadership {
    /// Whether this process leads.
    pub fn leads(&self) -> bool {
        *self == Self::Leading
    }
}

/// What came of a try to lead now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// This process leads, for as long as [`Leader::run`] runs.
    Acquired,
    /// Another does, and it lives: it was seen to write its Lease.
    HeldBy(Identity),
}

/// A Lease that can't be read or written.
#[derive(Debug, Error)]
pub enum LeaderError {
    /// The API server refuses, or can't be reached.
    #[error("lease {namespace}/{LEASE} can't be {what}: {source}; without it nothing is moved")]
    Request {
        /// The namespace.
        namespace: String,
        /// What was tried.
        what: &'static str,
        /// What the API server says.
        source: Box<KubeError>,
    },
    /// It does not answer.
    #[error("lease {namespace}/{LEASE} can't be {what}: no answer within {waited:?}; without it nothing is moved")]
    NoAnswer {
        /// The namespace.
        namespace: String,
        /// What was tried.
        what: &'static str,
        /// For how long.
        waited: Duration,
    },
}

/// A Lease, and since when it has been seen as it is.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    spec: LeaseSpec,
    since: Instant,
    /// Whether it was another before: then its holder lives.
    changed: bool,
}

impl Seen {
    fn holder(&self) -> Option<&str> {
        self.spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
    }
}

/// What to do about a Lease.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Somebody else has it.
    Wait,
    /// It is ours to renew, or nobody's: write this.
    Write(LeaseSpec),
}

/// Adds what was read just now to what was seen before.
fn look(before: Option<Seen>, spec: LeaseSpec, now: Instant) -> Seen {
    match before {
        Some(before) if before.spec == spec => before,
        before => Seen { spec, since: now, changed: before.is_some() },
    }
}

/// Decides on what was seen; `None` is no Lease at all.
fn step(seen: Option<&Seen>, me: &Identity, timing: Timing, now: Instant, clock: Timestamp) -> Step {
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
            let seconds = seen.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
            let duration = seconds.map_or(timing.lease, Duration::from_secs);
            if now.saturating_duration_since(seen.since) < duration {
                Step::Wait
            } else {
                taken(seen.spec.clone(), next)
            }
        }
    }
}

/// A process that leads, or would like to.
pub struct Leader {
    leases: Api<Lease>,
    namespace: String,
    me: Identity,
    timing: Timing,
    seen: Option<Seen>,
    /// When the last renewal that was carried out began.
    renewed: Option<Instant>,
    /// Whether the Lease may be ours: a write without an answer may have been carried out.
    wrote: bool,
    state: watch::Sender<Leadership>,
}

impl Leader {
    /// Keeps the Lease [`LEASE`] of `namespace`; nothing is asked yet.
    pub fn new(client: Client, namespace: &str, me: Identity, timing: Timing) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            me,
            timing,
            seen: None,
            renewed: None,
            wrote: false,
            state: watch::Sender::new(Leadership::Following { holder: None }),
        }
    }

    /// Tells whether this process leads, now and whenever that changes.
    pub fn subscribe(&self) -> watch::Receiver<Leadership> {
        self.state.subscribe()
    }

    /// Who this process is.
    pub fn identity(&self) -> &Identity {
        &self.me
    }

    /// Takes the Lease, or finds out that its holder lives; what a dead process left behind is waited
    /// for. So it takes a try or two beside a living leader, and the duration of the Lease at most.
    ///
    /// # Errors
    /// [`LeaderError`] where the Lease can't be read or written.
    pub async fn try_acquire(&mut self) -> Result<Acquisition, LeaderError> {
        loop {
            self.attempt().await?;
            if self.leads(Instant::now()) {
                return Ok(Acquisition::Acquired);
            }
            if let Some(seen) = &self.seen
                && let (true, Some(holder)) = (seen.changed, seen.holder())
            {
                return Ok(Acquisition::HeldBy(Identity::of(holder)));
            }
            sleep(self.timing.retry).await;
        }
    }

    /// Leads whenever it can, until `shutdown`; then the Lease is given back. Whatever relies on leading
    /// must have ended by then.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = self.round() => {}
            }
        }
        self.publish(Leadership::Following { holder: None });
        self.release().await;
    }

    /// Tries once, and waits until it is time for the next.
    async fn round(&mut self) {
        let next = Instant::now() + self.timing.retry;
        let failed = match self.deadline() {
            Some(deadline) => match timeout_at(deadline, self.attempt()).await {
                Ok(done) => done.err(),
                Err(_) => None,
            },
            None => self.attempt().await.err(),
        };
        if let Some(error) = failed {
            tracing::warn!(%error, "leader election");
        }
        match self.deadline() {
            Some(deadline) if next.max(Instant::now()) >= deadline => {
                sleep_until(deadline).await;
                self.renewed = None;
                tracing::warn!("the lease {}/{LEASE} could not be renewed in time: leading no more", self.namespace);
                self.publish(Leadership::Following { holder: None });
            }
            _ => sleep_until(next).await,
        }
    }

    /// Until when this process leads without another renewal.
    fn deadline(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + self.timing.deadline)
    }

    fn leads(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| now < deadline)
    }

    /// Reads the Lease, and writes it where it is ours to write.
    async fn attempt(&mut self) -> Result<(), LeaderError> {
        let begin = Instant::now();
        let found = self.bounded("read", self.leases.get_opt(LEASE)).await?;
        let now = Instant::now();
        self.seen = found.as_ref().map(|lease| look(self.seen.take(), lease.spec.clone().unwrap_or_default(), now));
        let spec = match step(self.seen.as_ref(), &self.me, self.timing, now, Timestamp::now()) {
            Step::Write(spec) => spec,
            Step::Wait => {
                self.renewed = None;
                let holder = self.seen.as_ref().and_then(Seen::holder).map(Identity::of);
                self.publish(Leadership::Following { holder });
                return Ok(());
            }
        };
        self.wrote = true;
        if let Some(lease) = self.write(found, spec).await? {
            self.seen = lease.spec.map(|spec| look(self.seen.take(), spec, Instant::now()));
            self.renewed = Some(begin);
            self.publish(Leadership::Leading);
        }
        Ok(())
    }

    /// Writes the Lease if it still is as it was `found`; `None` where it is not.
    async fn write(&self, found: Option<Lease>, spec: LeaseSpec) -> Result<Option<Lease>, LeaderError> {
        let parameters = PostParams::default();
        let written = match found {
            Some(found) => {
                let lease = Lease { spec: Some(spec), ..found };
                self.bounded("updated", self.leases.replace(LEASE, &parameters, &lease)).await
            }
            None => {
                let metadata = ObjectMeta { name: Some(LEASE.to_owned()), ..ObjectMeta::default() };
                let lease = Lease { metadata, spec: Some(spec) };
                self.bounded("created", self.leases.create(&parameters, &lease)).await
            }
        };
        match written {
            Ok(lease) => Ok(Some(lease)),
            Err(LeaderError::Request { source, .. }) if raced(&source) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gives the Lease back, if it is ours.
    async fn release(&mut self) {
        if !self.wrote {
            return;
        }
        let released = timeout(self.timing.deadline, async {
            loop {
                let found = self.bounded("read", self.leases.get_opt(LEASE)).await?;
                let Some(lease) = found else { return Ok(()) };
                let Some(spec) = lease.spec.clone() else { return Ok(()) };
                if spec.holder_identity.as_deref() != Some(self.me.as_str()) {
                    return Ok(());
                }
                let now = MicroTime(Timestamp::now());
                let spec = LeaseSpec {
                    holder_identity: Some(String::new()),
                    // As client-go: whoever looks at the times alone takes it for expired.
                    lease_duration_seconds: Some(1),
                    acquire_time: Some(now.clone()),
                    renew_time: Some(now),
                    ..spec
                };
                if self.write(Some(lease), spec).await?.is_some() {
                    return Ok::<(), LeaderError>(());
                }
            }
        });
        match released.await {
            Ok(Ok(())) => tracing::info!("gave the lease {}/{LEASE} back", self.namespace),
            Ok(Err(error)) => tracing::warn!(%error, "leader election: the next leader has to wait"),
            Err(_) => tracing::warn!("the lease {}/{LEASE} could not be given back in time", self.namespace),
        }
    }

    async fn bounded<T>(
        &self,
        what: &'static str,
        request: impl Future<Output = Result<T, KubeError>>,
    ) -> Result<T, LeaderError> {
        let waited = self.timing.request();
        let namespace = || self.namespace.clone();
        match timeout(waited, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(source)) => Err(LeaderError::Request { namespace: namespace(), what, source: Box::new(source) }),
            Err(_) => Err(LeaderError::NoAnswer { namespace: namespace(), what, waited }),
        }
    }

    fn publish(&self, state: Leadership) {
        self.state.send_if_modified(|known| {
            if *known == state {
                return false;
            }
            match &state {
                Leadership::Leading => tracing::info!(identity = %self.me, "leading"),
                Leadership::Following { holder: Some(holder) } => tracing::info!(%holder, "another process leads"),
                Leadership::Following { holder: None } => tracing::info!("not leading"),
            }
            *known = state;
            true
        });
    }
}

/// Whether somebody else was faster: changed it, made it, or deleted it.
fn raced(error: &KubeError) -> bool {
    // A missing namespace answers 404 as well, but names something else.
    let lease_gone = |status: &kube::core::Status| {
        status.code == 404 && status.details.as_ref().is_some_and(|details| details.name == LEASE)
    };
    matches!(error, KubeError::Api(status) if status.code == 409 || lease_gone(status))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

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

    #[test]
    fn an_identity_tells_what_it_is() {
        let rows = [
            (Identity::with("node-1", Role::Serve, 0xab), Some(Role::Serve)),
            (Identity::with("my_own_host", Role::Move, 0), Some(Role::Move)),
            (Identity::with("", Role::Move, 0), Some(Role::Move)),
            (Identity::of("serve"), None),
            (Identity::of("serve_1"), None),
            (Identity::of("node-1_3f2c"), None),
        ];
        for (identity, role) in rows {
            assert_eq!(identity.role(), role, "{identity}");
        }
        assert_ne!(Identity::new(Role::Serve), Identity::new(Role::Serve));
    }
}
