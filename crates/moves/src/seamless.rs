//! Decides the steps of a seamless move, during which both the old and the new address answer.
//!
//! A plain move releases the old address at once, but clients know it from DNS for up to a minute. A seamless move
//! keeps it in use with two temporary Services beside the one that moves, here called `web`:
//!
//! | step | `web` | `new` | `old` |
//! | --- | --- | --- | --- |
//! | prepare | old address | created with the new address | created, becomes `ExternalName`; its EndpointSlices stay |
//! | swap 1 | `ExternalName` that names `new` | new address | takes the old address |
//! | swap 2 | new address | deleted | old address |
//! | after the grace period | new address | | deleted |
//!
//! Before each swap, the temporary Service `trigger` is created or deleted in the server's namespace. kube-proxy
//! programs that change at once, and then waits at least a second before it programs the next ones. So it programs both
//! halves of the swap in one transaction, and no address disappears.
//!
//! # Guarantees
//! - [`next`] decides from the stored objects, so that a move may be interrupted anywhere.
//! - Only the run that recorded the move creates temporary Services or begins swap 1. Every other run goes back, or
//!   finishes the move after swap 1.
//! - Only objects that [`Temporary::is_ours`] accepts are changed or deleted, each with its UID and version.
//!
//! # Caveats
//! - Between the last two writes of swap 2, the name of the Service has no address, as during a plain move. A run that
//!   finds the Service like this gives it an address first.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_core::annotations::MOVING_NAME;
use clusterip_core::services::addresses;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::journal::Journal;
use crate::step::{self, Step};

pub mod dns;
pub mod endpoints;
pub mod method;
pub mod progress;
pub mod quota;
pub mod request;
pub mod temporary;

use self::progress::Progress;
use self::temporary::{Role, Temporary, grace_end};

/// How long after a change every kube-proxy has programmed it: its `minSyncPeriod` is 1 s by default, and it may be
/// busy.
pub const PROXY_DELAY: Duration = Duration::from_secs(4);
/// How long the Service points at `new` before swap 2, so that every kube-proxy has programmed swap 1.
pub const BETWEEN_SWAPS: Duration = Duration::from_secs(3);
/// The time between the change of `trigger` and the swap: about half of `minSyncPeriod`. A kube-proxy that receives the
/// change late still programs it before the swap, and one that receives the swap late still programs both halves of it
/// together.
pub const TRIGGER_LEAD: Duration = Duration::from_millis(450);

/// What a journal contains for a seamless move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The name of the temporary Service that has the new addresses first.
    pub new: String,
    /// The name of the temporary Service that keeps the old addresses for the grace period.
    pub old: String,
    /// The name of the temporary Service whose changes make kube-proxy wait for the swaps.
    pub trigger: String,
    /// The namespace of `trigger`: the server's namespace.
    pub server_namespace: String,
    /// The DNS name of `new`.
    pub external_name: String,
    /// For how many seconds after swap 1 `old` stays.
    pub grace: i64,
}

/// The stored objects of a move. Each is `None` if it does not exist.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The Service that moves; also `None` if another Service has its name.
    pub service: Option<Value>,
    /// The Service with the name of `new`.
    pub new: Option<Value>,
    /// The Service with the name of `old`.
    pub old: Option<Value>,
    /// The Service with the name of `trigger`.
    pub trigger: Option<Value>,
}

/// What the next step depends on besides the stored objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The time in seconds since 1970.
    pub now: i64,
    /// The time since the last write of this run, or since its beginning.
    pub since_write: Duration,
    /// Whether the EndpointSlices of `new`, and of `old` until it has released its address, list the endpoints of the
    /// Service.
    pub endpoints_match: bool,
    /// Whether the preparation has taken too long.
    pub is_late: bool,
    /// Whether no request of this move may still be carried out.
    pub requests_ended: bool,
}

/// The next step of a seamless move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeamlessStep {
    /// Create a temporary Service.
    Create(Role),
    /// Release the first address of `old`, and keep its EndpointSlices.
    ReleaseOld,
    /// Find out by a dry run whether `old` may have the old addresses.
    TryOld,
    /// Swap 1: the Service points at `new`.
    Release,
    /// Swap 1: `old` takes the old addresses.
    TakeOld,
    /// Delete a temporary Service.
    Delete(Role),
    /// Go back: write the marker to the Service, so that a release that arrives late is refused.
    PreventRelease,
    /// A step on the Service itself, as in a plain move.
    Original(Step),
    /// The move can't be prepared: an object has the name of a temporary Service, or is not as it was created.
    GiveUp(Role),
    /// Wait, and decide again.
    Wait(Wait),
    /// Nothing is left of the move: delete its record.
    End,
}

impl SeamlessStep {
    /// The name of the step, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create(Role::New) => "create new",
            Self::Create(Role::Old) => "create old",
            Self::Create(Role::Trigger) => "create trigger",
            Self::ReleaseOld => "release old",
            Self::TryOld => "try old",
            Self::Release => "release",
            Self::TakeOld => "take old",
            Self::Delete(Role::New) => "delete new",
            Self::Delete(Role::Old) => "delete old",
            Self::Delete(Role::Trigger) => "delete trigger",
            Self::PreventRelease => "prevent release",
            Self::Original(Step::Assign) => "assign",
            Self::Original(Step::RestoreStatus) => "status",
            Self::Original(Step::Cleanup) => "cleanup",
            Self::Original(Step::Idle) => "idle",
            Self::GiveUp(_) => "give up",
            Self::Wait(_) => "wait",
            Self::End => "end",
        }
    }
}

/// What a move waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The EndpointSlices of the temporary Services.
    Endpoints,
    /// This time.
    For(Duration),
    /// The end of the grace period, in seconds since 1970.
    Grace {
        /// The end.
        until: i64,
    },
    /// Requests without an answer, which may still be carried out.
    Requests,
}

/// The next step of a seamless move. `target` contains the addresses that the Service gets next: those of the journal,
/// unless they were refused; it is empty if the API server picks them.
pub fn next(
    seen: &Observed,
    journal: &Journal,
    plan: &Plan,
    progress: &Progress,
    moment: &Moment,
    target: &[IpAddr],
) -> SeamlessStep {
    let temporaries = Temporaries::of(seen, journal);
    let Some(service) = &seen.service else { return temporaries.delete_all(moment) };
    match step::next(service, journal) {
        Step::Assign => between_swaps(service, &temporaries, journal, progress, moment, target),
        Step::Idle if is_at(service, &journal.from) => before_swaps(service, &temporaries, journal, progress, moment),
        Step::Idle => after_swaps(&temporaries, journal, plan, moment),
        step => SeamlessStep::Original(step),
    }
}

/// The temporary Services of a move.
struct Temporaries<'v> {
    new: Temporary<'v>,
    old: Temporary<'v>,
    trigger: Temporary<'v>,
}

impl<'v> Temporaries<'v> {
    fn of(seen: &'v Observed, journal: &Journal) -> Self {
        Self {
            new: Temporary::of(seen.new.as_ref(), Role::New, journal),
            old: Temporary::of(seen.old.as_ref(), Role::Old, journal),
            trigger: Temporary::of(seen.trigger.as_ref(), Role::Trigger, journal),
        }
    }

    /// Deletes all temporary Services without delay, and ends the move.
    fn delete_all(&self, moment: &Moment) -> SeamlessStep {
        match [(&self.trigger, Role::Trigger), (&self.new, Role::New), (&self.old, Role::Old)]
            .into_iter()
            .find(|(temporary, _)| temporary.is_ours())
        {
            Some((_, role)) => SeamlessStep::Delete(role),
            None => end(moment),
        }
    }
}

fn end(moment: &Moment) -> SeamlessStep {
    if moment.requests_ended { SeamlessStep::End } else { SeamlessStep::Wait(Wait::Requests) }
}

/// Before swap 1, or after the Service got its old addresses back.
fn before_swaps(
    service: &Value,
    temporaries: &Temporaries<'_>,
    journal: &Journal,
    progress: &Progress,
    moment: &Moment,
) -> SeamlessStep {
    if !step::may_still_begin(service, journal) {
        return temporaries.delete_all(moment);
    }
    if progress.may_begin() && !moment.is_late {
        return prepare(temporaries, journal, progress, moment);
    }
    // A release that arrives late, or that another leader makes, would leave the name without an address once `new` is
    // deleted.
    SeamlessStep::PreventRelease
}

fn prepare(
    Temporaries { new, old, trigger }: &Temporaries<'_>,
    journal: &Journal,
    progress: &Progress,
    moment: &Moment,
) -> SeamlessStep {
    let old_is_released = old.is_released();
    match (new, old) {
        (Temporary::Foreign, _) => return SeamlessStep::GiveUp(Role::New),
        (_, Temporary::Foreign) => return SeamlessStep::GiveUp(Role::Old),
        (Temporary::Absent, _) => return SeamlessStep::Create(Role::New),
        (new, _) if !new.is_at(&journal.to) => return SeamlessStep::GiveUp(Role::New),
        (_, Temporary::Absent) => return SeamlessStep::Create(Role::Old),
        _ if !moment.endpoints_match => return SeamlessStep::Wait(Wait::Endpoints),
        _ if !old_is_released => return SeamlessStep::ReleaseOld,
        _ => {}
    }
    if !progress.old_was_tried() {
        return SeamlessStep::TryOld;
    }
    let has_trigger = trigger.is_ours();
    let goes_without_trigger = progress.goes_without_trigger() || matches!(trigger, Temporary::Foreign);
    let needed = if has_trigger { TRIGGER_LEAD } else { PROXY_DELAY };
    if moment.since_write < needed {
        SeamlessStep::Wait(Wait::For(needed - moment.since_write))
    } else if !has_trigger && !goes_without_trigger {
        SeamlessStep::Create(Role::Trigger)
    } else {
        SeamlessStep::Release
    }
}

fn between_swaps(
    service: &Value,
    Temporaries { new, old, trigger }: &Temporaries<'_>,
    journal: &Journal,
    progress: &Progress,
    moment: &Moment,
    target: &[IpAddr],
) -> SeamlessStep {
    if !new.is_at(&journal.to) || !points_at(service, journal) {
        // The name has no address, so assign one first, unless a temporary Service has it.
        return if new.has_any(target) {
            SeamlessStep::Delete(Role::New)
        } else if old.has_any(target) {
            SeamlessStep::Delete(Role::Old)
        } else {
            SeamlessStep::Original(Step::Assign)
        };
    }
    if old.is_released() && !progress.is_done_with_old() {
        return SeamlessStep::TakeOld;
    }
    let needed = if progress.trigger_was_deleted() { TRIGGER_LEAD } else { BETWEEN_SWAPS };
    if moment.since_write < needed {
        SeamlessStep::Wait(Wait::For(needed - moment.since_write))
    } else if trigger.is_ours() {
        SeamlessStep::Delete(Role::Trigger)
    } else {
        SeamlessStep::Delete(Role::New)
    }
}

/// After the Service got its new addresses, or after another client has changed them.
fn after_swaps(temporaries: &Temporaries<'_>, journal: &Journal, plan: &Plan, moment: &Moment) -> SeamlessStep {
    let Temporaries { new, old, trigger } = temporaries;
    if trigger.is_ours() || new.is_ours() || !old.is_at(&journal.from) {
        return temporaries.delete_all_but_old(journal, moment);
    }
    let until = grace_end(old, journal, plan);
    if moment.now < until { SeamlessStep::Wait(Wait::Grace { until }) } else { SeamlessStep::Delete(Role::Old) }
}

impl Temporaries<'_> {
    /// As [`Self::delete_all`], but `old` stays if it has the old addresses.
    fn delete_all_but_old(&self, journal: &Journal, moment: &Moment) -> SeamlessStep {
        if self.trigger.is_ours() {
            SeamlessStep::Delete(Role::Trigger)
        } else if self.new.is_ours() {
            SeamlessStep::Delete(Role::New)
        } else if self.old.is_ours() && !self.old.is_at(&journal.from) {
            SeamlessStep::Delete(Role::Old)
        } else {
            end(moment)
        }
    }
}

/// Whether a Service has exactly these addresses.
fn is_at(service: &Value, at: &[IpAddr]) -> bool {
    let kind = service.pointer("/spec/type").and_then(Value::as_str);
    kind != Some("ExternalName") && addresses(service) == at
}

/// Whether a Service is an alias of `new`.
fn points_at(service: &Value, journal: &Journal) -> bool {
    service.pointer("/spec/externalName").and_then(Value::as_str) == Some(journal.external_name())
}

/// Whether a Service is an `ExternalName` that never resolves.
fn is_released(service: &Value) -> bool {
    let spec = |field: &str| service.get("spec").and_then(|spec| spec.get(field)).and_then(Value::as_str);
    spec("type") == Some("ExternalName") && spec("externalName") == Some(MOVING_NAME)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
