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

use clusterip_core::annotations::{
    MOVE_ANNOTATION, MOVING_ANNOTATION, MOVING_NAME, OS_ANNOTATION, POOL_ANNOTATION, SERVICE_ANNOTATION,
    SWAPPED_ANNOTATION, TEMPORARY_LABEL, in_service_annotation,
};
use clusterip_core::services::addresses;
use serde_json::{Map, Value, json};

use crate::journal::{Journal, Plan};
use crate::outcome::Refusal;
use crate::step::{self, Step};
use crate::temporary::{MANAGED_BY, Role, Temporary, grace_end, latest_grace_end};

/// How long after a change every kube-proxy has programmed it: its `minSyncPeriod` is 1 s by default, and it may be
/// busy.
pub const PROXY_DELAY: Duration = Duration::from_secs(4);
/// How long the Service points at `new` before swap 2, so that every kube-proxy has programmed swap 1.
pub const BETWEEN_SWAPS: Duration = Duration::from_secs(3);
/// The time between the change of `trigger` and the swap: about half of `minSyncPeriod`. A kube-proxy that receives the
/// change late still programs it before the swap, and one that receives the swap late still programs both halves of it
/// together.
pub const TRIGGER_LEAD: Duration = Duration::from_millis(450);

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
        // The author of the Service can make the API server refuse each write to it. That must not keep an address.
        Step::Assign | Step::RestoreStatus | Step::Cleanup
            if moment.now >= latest_grace_end(journal, plan)
                && let Some(delete) = temporaries.delete_any() =>
        {
            delete
        }
        Step::Assign => between_swaps(service, &temporaries, journal, progress, moment, target),
        Step::Idle if addresses(service) == journal.from => {
            before_swaps(service, &temporaries, journal, progress, moment)
        }
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
        self.delete_any().unwrap_or_else(|| end(moment))
    }

    /// Deletes a temporary Service, `new` last; `None` if none is left.
    fn delete_any(&self) -> Option<SeamlessStep> {
        let all = [(&self.trigger, Role::Trigger), (&self.old, Role::Old), (&self.new, Role::New)];
        let (_, role) = all.into_iter().find(|(temporary, _)| temporary.is_ours())?;
        Some(SeamlessStep::Delete(role))
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
    if progress.recorded && progress.failure.is_none() && !moment.is_late {
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
    if !progress.tried_old {
        return SeamlessStep::TryOld;
    }
    let has_trigger = trigger.is_ours();
    let goes_without_trigger = progress.without_trigger || matches!(trigger, Temporary::Foreign);
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
    if old.is_released() && !(progress.without_old || progress.took_old) {
        return SeamlessStep::TakeOld;
    }
    let needed = if progress.deleted_trigger { TRIGGER_LEAD } else { BETWEEN_SWAPS };
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

/// Whether a Service is an alias of `new`.
fn points_at(service: &Value, journal: &Journal) -> bool {
    service.pointer("/spec/externalName").and_then(Value::as_str) == Some(journal.external_name())
}

/// What one run of a move knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Whether this run recorded the move. No other run creates temporary Services.
    recorded: bool,
    /// Why the preparation has failed.
    failure: Option<String>,
    tried_old: bool,
    without_trigger: bool,
    /// Whether `old` was refused the old addresses. Then, and after it took them, this run leaves `old` as it is: if
    /// another client releases its addresses again and again, the move goes on without them.
    without_old: bool,
    took_old: bool,
    deleted_trigger: bool,
    /// What did not go as planned, as text for the outcome.
    notes: Vec<String>,
}

/// What follows from the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Read the objects again, and go on.
    GoOn,
    /// Wait before the next try. The move fails if the request was refused, or takes too long.
    TryAgain,
}

impl Progress {
    /// The run that recorded the move.
    pub fn of_first_run() -> Self {
        Self { recorded: true, ..Self::default() }
    }

    /// A run that finishes what another one began.
    pub fn of_later_run() -> Self {
        Self::default()
    }

    /// Stops the preparation.
    pub fn fail(&mut self, reason: String) {
        if self.failure.is_none() {
            self.notes.push(reason.clone());
            self.failure = Some(reason);
        }
    }

    /// Why the preparation has failed; `None` if it has not.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// What did not go as planned.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether this run recorded the move.
    pub fn is_of_first_run(&self) -> bool {
        self.recorded
    }

    /// Notes the answer to the request of a step, and returns what follows.
    pub fn answered(&mut self, step: &SeamlessStep, answer: Result<(), &Refusal>) -> Reaction {
        let refusal = match answer {
            Ok(()) => {
                self.tried_old |= *step == SeamlessStep::TryOld;
                self.took_old |= *step == SeamlessStep::TakeOld;
                self.deleted_trigger |= *step == SeamlessStep::Delete(Role::Trigger);
                return Reaction::GoOn;
            }
            Err(refusal) => refusal,
        };
        let is_unanswered = refusal.is_uncertain();
        match (step, refusal) {
            (SeamlessStep::Create(Role::Trigger), _) if is_unanswered => {}
            // Another client has changed the object, or deleted it.
            (SeamlessStep::Create(Role::New | Role::Old), Refusal::Gone) => self.fail(refusal.to_string()),
            (_, Refusal::Conflict) => {}
            (
                SeamlessStep::Delete(_) | SeamlessStep::ReleaseOld | SeamlessStep::TakeOld | SeamlessStep::TryOld,
                Refusal::Gone,
            ) => {}
            (SeamlessStep::Create(Role::Trigger), _) => self.without_trigger = true,
            // As long as the Service has the old address, this is the expected answer.
            (SeamlessStep::TryOld, Refusal::Address { .. } | Refusal::Port { .. }) => self.tried_old = true,
            (SeamlessStep::TakeOld, _) if !is_unanswered => {
                self.without_old = true;
                self.notes.push(format!("its old address stopped answering at once: {refusal}"));
            }
            (
                SeamlessStep::Create(Role::New | Role::Old)
                | SeamlessStep::ReleaseOld
                | SeamlessStep::TryOld
                | SeamlessStep::Release,
                _,
            ) if !is_unanswered => self.fail(refusal.to_string()),
            _ => return Reaction::TryAgain,
        }
        if is_unanswered { Reaction::TryAgain } else { Reaction::GoOn }
    }
}

/// A request of a seamless move to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Create this Service.
    Create {
        /// Its namespace.
        namespace: String,
        /// The Service.
        body: Value,
    },
    /// Replace the Service. The body names the UID and the version that it replaces.
    Replace {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The Service.
        body: Value,
        /// Whether nothing is stored.
        dry_run: bool,
    },
    /// Delete the Service, if it still has this UID and version.
    Delete {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
        /// Its version.
        resource_version: String,
    },
}

/// The fields of a spec that decide where and how its traffic goes.
const COPIED: [&str; 9] = [
    "internalTrafficPolicy",
    "ipFamilies",
    "ipFamilyPolicy",
    "ports",
    "publishNotReadyAddresses",
    "selector",
    "sessionAffinity",
    "sessionAffinityConfig",
    "trafficDistribution",
];

/// The annotations that decide where the traffic goes, and which pool the policy chooses.
const COPIED_ANNOTATIONS: [&str; 4] = [
    OS_ANNOTATION,
    POOL_ANNOTATION,
    "service.kubernetes.io/topology-aware-hints",
    "service.kubernetes.io/topology-mode",
];

/// The request of a step; `None` for a step that sends none, or whose object does not exist. `now` is the time in
/// seconds since 1970.
pub fn request(step: &SeamlessStep, seen: &Observed, journal: &Journal, plan: &Plan, now: i64) -> Option<Request> {
    let replace = |(namespace, name): (&str, &str), body: Value, dry_run: bool| {
        Some(Request::Replace { namespace: namespace.to_owned(), name: name.to_owned(), body, dry_run })
    };
    let service = (journal.namespace.as_str(), journal.name.as_str());
    let old = plan.place(Role::Old, journal);
    match step {
        SeamlessStep::Create(role) => {
            let (namespace, name) = plan.place(*role, journal);
            let body = temporary(*role, name, namespace, seen, journal);
            Some(Request::Create { namespace: namespace.to_owned(), body })
        }
        SeamlessStep::ReleaseOld => replace(old, without_address(seen.old.as_ref()?), false),
        SeamlessStep::TryOld => replace(old, at_old_address(seen.old.as_ref()?, journal, now), true),
        SeamlessStep::TakeOld => replace(old, at_old_address(seen.old.as_ref()?, journal, now), false),
        SeamlessStep::Release => replace(service, step::released(seen.service.as_ref()?, journal), false),
        SeamlessStep::PreventRelease => replace(service, step::marked(seen.service.as_ref()?, journal), false),
        SeamlessStep::Delete(role) => {
            let object = match role {
                Role::New => &seen.new,
                Role::Old => &seen.old,
                Role::Trigger => &seen.trigger,
            };
            let metadata = object.as_ref()?.get("metadata")?;
            let (namespace, name) = plan.place(*role, journal);
            Some(Request::Delete {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: metadata.get("uid")?.as_str()?.to_owned(),
                resource_version: metadata.get("resourceVersion")?.as_str()?.to_owned(),
            })
        }
        SeamlessStep::Original(_) | SeamlessStep::GiveUp(_) | SeamlessStep::Wait(_) | SeamlessStep::End => None,
    }
}

/// A temporary Service as it is created.
fn temporary(role: Role, name: &str, namespace: &str, seen: &Observed, journal: &Journal) -> Value {
    let service = seen.service.as_ref();
    let copied = |key: &&str| {
        let value = service?.get("metadata")?.get("annotations")?.get(*key)?;
        Some(((*key).to_owned(), value.clone()))
    };
    let mut annotations: Map<String, Value> = COPIED_ANNOTATIONS.iter().filter_map(copied).collect();
    annotations.insert(MOVE_ANNOTATION.to_owned(), "never".into());
    annotations.insert(SERVICE_ANNOTATION.to_owned(), in_service_annotation(&journal.namespace, &journal.name).into());
    let mut metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, TEMPORARY_LABEL: role.as_str()},
        "annotations": annotations,
    });
    let spec = match role {
        Role::Trigger => json!({"type": "ClusterIP", "ports": [{"port": 1, "protocol": "TCP"}]}).as_object().cloned(),
        Role::New => Some(spec_at(journal, &journal.to)),
        Role::Old => Some(spec_at(journal, &[])),
    };
    if role != Role::Trigger {
        metadata["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Service", "name": journal.name, "uid": journal.uid}]);
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec.unwrap_or_default()})
}

/// The spec of a temporary Service that sends traffic where the Service sends it, with these addresses.
fn spec_at(journal: &Journal, addresses: &[IpAddr]) -> Map<String, Value> {
    let copied = |key: &&str| Some(((*key).to_owned(), journal.spec.get(*key)?.clone()));
    let mut spec: Map<String, Value> = COPIED.iter().filter_map(copied).collect();
    spec.insert("type".to_owned(), "ClusterIP".into());
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten();
    for port in ports.filter_map(Value::as_object_mut) {
        port.remove("nodePort");
    }
    let texts: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    if let Some(first) = texts.first() {
        spec.insert("clusterIP".to_owned(), first.as_str().into());
        spec.insert("clusterIPs".to_owned(), texts.into());
    }
    spec
}

/// `old` without an address.
fn without_address(old: &Value) -> Value {
    let mut old = step::bare(old);
    if let Some(spec) = old.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("type".into(), "ExternalName".into());
        spec.insert("externalName".into(), MOVING_NAME.into());
    }
    old
}

/// `old` with the old addresses, and with the time from which the grace period counts.
fn at_old_address(old: &Value, journal: &Journal, now: i64) -> Value {
    let mut old = step::bare(old);
    old["spec"] = spec_at(journal, &journal.from).into();
    step::annotate(&mut old, SWAPPED_ANNOTATION, Some(&now.to_string()));
    step::annotate(&mut old, MOVING_ANNOTATION, None);
    old
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
