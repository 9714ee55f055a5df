//! Leases of Kubernetes: who holds a Lease, how long it has been unchanged, and when a process may take it. Every write
//! names the [`Version`] that it replaces. This module sends no requests and reads no clock.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use clusterip_core::annotations::{ADDRESS_ANNOTATION, LEASE_LABEL, NODE_ANNOTATION};
use k8s_openapi::Resource as _;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, MicroTime, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

/// The maximum length of an identity, which may be any text: a host name, the longest role, and the random part.
const MAX_LENGTH: usize = 253 + "_agent_0123456789abcdef".len();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Serve,
    Move,
    Agent,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Move => "move",
            Self::Agent => "agent",
        }
    }
}

/// The holder of a Lease, as `HOST_ROLE_RANDOM`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity(String);

impl Identity {
    /// A new identity for this process. No other process has the same, not even one that runs in the same Pod later.
    pub fn new(role: Role) -> Self {
        let host = hostname::get().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Self::on(&host, role)
    }

    /// As [`Self::new`], on a host whose name the caller knows. It may differ from the host name of the process.
    pub fn on(host: &str, role: Role) -> Self {
        // The standard library seeds every `RandomState` from the randomness of the system.
        Self::with(host, role, RandomState::new().build_hasher().finish())
    }

    pub fn with(host: &str, role: Role, random: u64) -> Self {
        Self(format!("{host}_{}_{random:016x}", role.word()))
    }

    /// The identity of another process, as it is written in a Lease; at most its first 276 characters.
    pub fn of(holder: &str) -> Self {
        Self(holder.chars().take(MAX_LENGTH).collect())
    }

    /// The role of the process; `None` if the holder is not one of our processes.
    pub fn role(&self) -> Option<Role> {
        let mut parts = self.0.rsplit('_').skip(1);
        let word = parts.next()?;
        parts.next()?;
        [Role::Serve, Role::Move, Role::Agent].into_iter().find(|role| role.word() == word)
    }

    /// The node of an agent; `None` if this is not the identity of an agent on a node that can exist.
    pub(crate) fn agent_node(&self) -> Option<&str> {
        self.host().filter(|host| self.role() == Some(Role::Agent) && !host.contains('_'))
    }

    pub fn host(&self) -> Option<&str> {
        self.role()?;
        self.0.rsplitn(3, '_').nth(2)
    }

    pub fn random(&self) -> &str {
        self.0.rsplit('_').next().unwrap_or_default()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value that another process renews, and since when this process has seen it unchanged.
///
/// No clock of the other process is trusted: the value counts as abandoned only after this process has seen it
/// unchanged for its whole duration, on a clock that never jumps.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed<T> {
    pub value: T,
    pub since: Instant,
    /// Whether the value was seen to change, which proves that its holder is alive.
    pub changed: bool,
}

impl<T> Observed<T> {
    pub fn first(value: T, now: Instant) -> Self {
        Self { value, since: now, changed: false }
    }

    /// Combines what was just read with what was seen before.
    pub fn next(before: Option<Self>, value: T, now: Instant) -> Self
    where
        T: PartialEq,
    {
        match before {
            Some(before) if before.value == value => before,
            before => Self { value, since: now, changed: before.is_some() },
        }
    }

    pub fn end(&self, duration: Duration) -> Instant {
        self.since + duration
    }

    pub fn is_unchanged_for(&self, duration: Duration, now: Instant) -> bool {
        now >= self.end(duration)
    }

    /// Counts the value as unchanged for exactly `duration`, so that what is due then is due again only later.
    pub fn restart(&mut self, duration: Duration, now: Instant) {
        self.since = now.checked_sub(duration).unwrap_or(now);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub uid: String,
    pub resource_version: String,
}

impl Version {
    pub fn of(lease: &Lease) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Self { uid: text(&lease.metadata.uid), resource_version: text(&lease.metadata.resource_version) }
    }

    /// Whether a Lease of this version says nothing new to a process that has seen `other`: it is the same, or older. A
    /// watch may deliver a version that is older than the answer to a write.
    pub fn is_known_beside(&self, other: &Self) -> bool {
        let number = |version: &Self| version.resource_version.parse::<u64>().ok();
        self == other || matches!((number(self), number(other)), (Some(mine), Some(other)) if mine < other)
    }

    /// A Lease that replaces this version, and no other: the API server refuses it otherwise.
    pub fn replace_with(&self, lease: &mut Lease) {
        lease.metadata.uid = Some(self.uid.clone());
        lease.metadata.resource_version = Some(self.resource_version.clone());
    }
}

/// The metadata of a Lease of this program, which `kubectl get leases` selects by the label. Its entry of
/// `managedFields` replaces all earlier ones, of which forged ones could keep other agents from ending a heartbeat. The
/// API server adds an entry with the time of this write, but only beside others.
pub(crate) fn metadata<const N: usize>(name: String, label: &str, annotations: [(&str, String); N]) -> ObjectMeta {
    let earlier = ManagedFieldsEntry {
        api_version: Some(Lease::API_VERSION.to_owned()),
        fields_type: Some("FieldsV1".to_owned()),
        manager: Some("clusterip".to_owned()),
        operation: Some("Update".to_owned()),
        time: Some(Time(Timestamp::UNIX_EPOCH)),
        ..ManagedFieldsEntry::default()
    };
    ObjectMeta {
        name: Some(name),
        labels: Some([(LEASE_LABEL.to_owned(), label.to_owned())].into()),
        annotations: Some(annotations.map(|(key, value)| (key.to_owned(), value)).into()),
        managed_fields: Some(vec![earlier]),
        ..ObjectMeta::default()
    }
}

/// Keeps only the fields that are used of a Lease of an agent.
pub fn keep_used_fields(lease: &mut Lease) {
    let ObjectMeta { name, uid, resource_version, mut annotations, .. } = std::mem::take(&mut lease.metadata);
    if let Some(annotations) = &mut annotations {
        annotations.retain(|key, _| [ADDRESS_ANNOTATION, NODE_ANNOTATION].contains(&key.as_str()));
    }
    lease.metadata = ObjectMeta { name, uid, resource_version, annotations, ..ObjectMeta::default() };
}

pub const LEASE: &str = "clusterip-leader";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    pub lease: Duration,
    /// How long after its last renewal a process still leads.
    pub deadline: Duration,
    pub retry: Duration,
}

impl Timing {
    /// How long a request may take: short enough to repeat it before the deadline.
    pub fn request(self) -> Duration {
        self.deadline / 2
    }

    /// The duration in the Lease, in whole seconds: never shorter than ours.
    pub(crate) fn seconds(self) -> i32 {
        self.lease.as_secs_f64().ceil() as i32
    }
}

impl Default for Timing {
    /// 15 s, 10 s and 2 s, as in Kubernetes' own controllers.
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), deadline: Duration::from_secs(10), retry: Duration::from_secs(2) }
    }
}

pub type ObservedLease = Observed<LeaseSpec>;

pub fn holder(spec: &LeaseSpec) -> Option<&str> {
    spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

pub fn end(seen: &ObservedLease, timing: Timing) -> Instant {
    let seconds = seen.value.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seen.end(seconds.map_or(timing.lease, Duration::from_secs))
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Wait,
    /// This process holds the Lease, or may take it: write this spec.
    Write(LeaseSpec),
}

/// Decides what to do about the Lease. `now` measures durations, `clock` is written to the Lease.
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
        Some(_) if now < end(seen, timing) => Step::Wait,
        Some(_) => taken(seen.value.clone(), next),
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, clippy::unwrap_used)]
mod tests;
