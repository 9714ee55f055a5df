//! Decides the steps of a seamless move, during which both the old and the new address answer.
//!
//! A plain move releases the old address at once, but clients know it from DNS for up to a minute. A seamless move
//! keeps it in use with two temporary Services beside the one that moves, here called `web`:
//!
//! | step | `web` | `new` | `old` |
//! | --- | --- | --- | --- |
//! | prepare | old address | created with the new address | created, becomes `ExternalName` that names `new`; its EndpointSlices stay |
//! | swap 1 | `ExternalName` that names `old` | new address | takes the old address |
//! | swap 2 | new address | deleted | old address |
//! | after the grace period | new address | | deleted |
//!
//! So the name of the Service always leads to an address: within swap 1 to `new`, through `old`, and from then on to `old`
//! until the Service has its new address. The grace period begins after that, because DNS may answer with the old address
//! until then.
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
//! - If `old` can't take the old address, the name of the Service has no address between the last two writes of swap 2, as
//!   during a plain move. A run that finds the Service like this gives it an address first.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_core::annotations::{
    MOVE_ANNOTATION, MOVING_ANNOTATION, OS_ANNOTATION, POOL_ANNOTATION, SERVICE_ANNOTATION, SWAPPED_ANNOTATION,
    in_service_annotation,
};
use clusterip_core::service::addresses;
use serde_json::{Map, Value, json};

use crate::journal::{Journal, Plan};
use crate::outcome::Refusal;
use crate::step::{self, Step};
use crate::temporary::{Role, Temporary, grace_begin, grace_end, latest_grace_end, may_begin_grace};

/// How long after a change every kube-proxy has programmed it: its `minSyncPeriod` is 1 s by default, and it may be
/// busy.
pub const PROXY_DELAY: Duration = Duration::from_secs(4);
/// How long after a change kube-proxy programs the next one at once. It programs the first change at once and those after
/// it when its `minSyncPeriod` of a second has passed, and then waits for another second.
pub const PROXY_IDLE: Duration = Duration::from_millis(2100);
/// How long the Service points at `old` before swap 2, so that every kube-proxy has programmed swap 1.
pub(crate) const BETWEEN_SWAPS: Duration = Duration::from_secs(3);
/// The time between the change of `trigger` and the swap: about half of `minSyncPeriod`. A kube-proxy that receives the
/// change late still programs it before the swap, and one that receives the swap late still programs both halves of it
/// together.
pub const TRIGGER_LEAD: Duration = Duration::from_millis(450);

/// The stored Service, and the objects with the names of its temporary Services. What is missing is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Also `None` if another Service has its name.
    pub service: Option<Value>,
    pub new: Option<Value>,
    pub old: Option<Value>,
    pub trigger: Option<Value>,
}

impl Observed {
    /// Whether a temporary Service of this move is left.
    pub fn has_temporary(&self, journal: &Journal) -> bool {
        let all = [(&self.new, Role::New), (&self.old, Role::Old), (&self.trigger, Role::Trigger)];
        all.into_iter().any(|(object, role)| Temporary::of(object.as_ref(), role, journal).is_ours())
    }

    pub fn temporary(&mut self, role: Role) -> &mut Option<Value> {
        match role {
            Role::New => &mut self.new,
            Role::Old => &mut self.old,
            Role::Trigger => &mut self.trigger,
        }
    }
}

/// What the next step depends on besides the stored objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The time in seconds since 1970.
    pub now: i64,
    /// The time since the last write of this run, or since its beginning.
    pub since_write: Duration,
    /// Whether the EndpointSlices of `new`, and of `old` until it is released, list the endpoints of the Service.
    pub endpoints_match: bool,
    /// Whether the preparation has taken too long.
    pub is_late: bool,
    /// Whether no request of this move may still be carried out.
    pub requests_ended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeamlessStep {
    Create(Role),
    /// Release the first address of `old`, and keep its EndpointSlices.
    ReleaseOld,
    /// Find out by a dry run whether `old` may have the old addresses.
    TryOld,
    /// Swap 1: the Service points at `old`.
    Release,
    /// Swap 1: `old` takes the old addresses.
    TakeOld,
    Delete(Role),
    /// After swap 2: write to `old` when the grace period begins.
    BeginGrace,
    /// Go back: write the marker to the Service, so that a release that arrives late is refused.
    PreventRelease,
    /// A step on the Service itself, as in a plain move.
    Original(Step),
    /// The move can't be prepared: an object has the name of a temporary Service, or is not as it was created.
    GiveUp(Role),
    Wait(Wait),
    /// Nothing is left of the move: delete its record.
    End,
}

impl SeamlessStep {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create(Role::New) => "create new",
            Self::Create(Role::Old) => "create old",
            Self::Create(Role::Trigger) => "create trigger",
            Self::ReleaseOld => "release old",
            Self::TryOld => "try old",
            Self::Release => "release",
            Self::TakeOld => "take old",
            Self::BeginGrace => "begin grace",
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Endpoints,
    For(Duration),
    /// The end of the grace period, in seconds since 1970.
    Grace(i64),
    /// Requests without an answer, which may still be carried out.
    Requests,
}

/// The next step of a seamless move. `target` contains the addresses that the Service gets next: those of the journal,
/// unless they were refused; it is empty if the API server picks them.
pub fn next<'v>(
    seen: &'v Observed,
    journal: &'v Journal,
    progress: &'v Progress,
    moment: &'v Moment,
    target: &[IpAddr],
) -> SeamlessStep {
    let temporary = |object: &'v Option<Value>, role| Temporary::of(object.as_ref(), role, journal);
    let (new, old) = (temporary(&seen.new, Role::New), temporary(&seen.old, Role::Old));
    let trigger = temporary(&seen.trigger, Role::Trigger);
    let this = Situation { new, old, trigger, journal, progress, moment };
    let Some(service) = &seen.service else { return this.delete_all() };
    match step::next(service, journal) {
        // The author of the Service can make the API server refuse each write to it. That must not keep an address, and
        // not even for the grace period one that the API server picked.
        Step::Assign | Step::RestoreStatus | Step::Cleanup
            if moment.now >= latest_grace_end(journal)
                && let Some(delete) = this.delete_any() =>
        {
            delete
        }
        Step::Assign | Step::RestoreStatus | Step::Cleanup if this.old_has_picked_address() => {
            SeamlessStep::Delete(Role::Old)
        }
        Step::RestoreStatus | Step::Cleanup if this.trigger.is_ours() => SeamlessStep::Delete(Role::Trigger),
        Step::Assign => this.between_swaps(service, target),
        Step::Idle if addresses(service) == journal.from => this.before_swaps(service),
        Step::Idle => this.after_swaps(),
        step => SeamlessStep::Original(step),
    }
}

/// The temporary Services of a move, and what its next step depends on besides them and the Service.
struct Situation<'v> {
    new: Temporary<'v>,
    old: Temporary<'v>,
    trigger: Temporary<'v>,
    journal: &'v Journal,
    progress: &'v Progress,
    moment: &'v Moment,
}

impl Situation<'_> {
    /// Before swap 1, or after the Service got its old addresses back.
    fn before_swaps(&self, service: &Value) -> SeamlessStep {
        if !step::may_still_begin(service, self.journal) {
            return self.delete_all();
        }
        if self.progress.recorded && self.progress.failure.is_none() && !self.moment.is_late {
            return self.prepare();
        }
        // A release that arrives late, or that another leader makes, would leave the name without an address once `new`
        // is deleted. If this can't be prevented either, none arrives any more after that time.
        let is_over = self.moment.now >= latest_grace_end(self.journal) && self.moment.requests_ended;
        self.delete_any().filter(|_| is_over).unwrap_or(SeamlessStep::PreventRelease)
    }

    fn prepare(&self) -> SeamlessStep {
        match (&self.new, &self.old) {
            (Temporary::Foreign, _) => return SeamlessStep::GiveUp(Role::New),
            (_, Temporary::Foreign) => return SeamlessStep::GiveUp(Role::Old),
            (Temporary::Absent, _) => return SeamlessStep::Create(Role::New),
            (new, _) if !new.is_at(&self.journal.to) => return SeamlessStep::GiveUp(Role::New),
            (_, Temporary::Absent) => return SeamlessStep::Create(Role::Old),
            _ if !self.moment.endpoints_match => return SeamlessStep::Wait(Wait::Endpoints),
            (_, old) if !old.is_released(self.journal) => return SeamlessStep::ReleaseOld,
            _ if !self.progress.tried_old => return SeamlessStep::TryOld,
            _ => {}
        }
        let next = match self.trigger {
            Temporary::Absent if !self.progress.without_trigger => SeamlessStep::Create(Role::Trigger),
            _ => SeamlessStep::Release,
        };
        self.after(if self.trigger.is_ours() { TRIGGER_LEAD } else { PROXY_DELAY }, next)
    }

    fn between_swaps(&self, service: &Value, target: &[IpAddr]) -> SeamlessStep {
        let Self { new, old, trigger, journal, progress, .. } = self;
        let points_at = service.pointer("/spec/externalName").and_then(Value::as_str);
        if !new.is_at(&journal.to) || !old.is_ours() || points_at != Some(journal.external_name()) {
            // The name has no address, so assign one first, unless a temporary Service has it.
            return if new.has_any(target) {
                SeamlessStep::Delete(Role::New)
            } else if old.has_any(target) {
                SeamlessStep::Delete(Role::Old)
            } else if trigger.is_ours() {
                // It has an address that the API server picked, and the assignment may be refused for a long time.
                SeamlessStep::Delete(Role::Trigger)
            } else {
                SeamlessStep::Original(Step::Assign)
            };
        }
        if old.is_released(journal) && !(progress.without_old || progress.took_old) {
            return SeamlessStep::TakeOld;
        }
        let next = SeamlessStep::Delete(if trigger.is_ours() { Role::Trigger } else { Role::New });
        self.after(if progress.deleted_trigger { TRIGGER_LEAD } else { BETWEEN_SWAPS }, next)
    }

    /// After the Service got its new addresses, or after another client has changed them.
    fn after_swaps(&self) -> SeamlessStep {
        let until = grace_end(&self.old, self.journal);
        if self.trigger.is_ours() {
            SeamlessStep::Delete(Role::Trigger)
        } else if self.new.is_ours() {
            SeamlessStep::Delete(Role::New)
        } else if self.old.is_at(&self.journal.from) && self.may_begin_grace() {
            SeamlessStep::BeginGrace
        } else if self.old.is_at(&self.journal.from) && self.moment.now < until {
            SeamlessStep::Wait(Wait::Grace(until))
        } else {
            self.delete_all()
        }
    }

    /// Whether the grace period has not begun, and this run has not tried to begin it.
    fn may_begin_grace(&self) -> bool {
        !self.progress.began_grace
            && grace_begin(&self.old, self.journal).is_none()
            && may_begin_grace(self.moment.now, self.journal)
    }

    /// The step, after this time since the last write.
    fn after(&self, needed: Duration, step: SeamlessStep) -> SeamlessStep {
        let rest = needed.saturating_sub(self.moment.since_write);
        if rest.is_zero() { step } else { SeamlessStep::Wait(Wait::For(rest)) }
    }

    /// Whether `old` has the address with which the API server created it.
    fn old_has_picked_address(&self) -> bool {
        self.old.is_ours() && !self.old.is_released(self.journal) && !self.old.has_any(&self.journal.from)
    }

    /// Deletes all temporary Services without delay, and ends the move.
    fn delete_all(&self) -> SeamlessStep {
        let end = if self.moment.requests_ended { SeamlessStep::End } else { SeamlessStep::Wait(Wait::Requests) };
        self.delete_any().unwrap_or(end)
    }

    /// Deletes a temporary Service, `new` last; `None` if none is left.
    fn delete_any(&self) -> Option<SeamlessStep> {
        let all = [(self.trigger, Role::Trigger), (self.old, Role::Old), (self.new, Role::New)];
        let (_, role) = all.into_iter().find(|(temporary, _)| temporary.is_ours())?;
        Some(SeamlessStep::Delete(role))
    }
}

/// What one run of a move knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Whether this run recorded the move. No other run creates temporary Services.
    recorded: bool,
    pub failure: Option<String>,
    /// Whether the move failed because the API server refused the addresses of `new`.
    pub new_was_refused: bool,
    tried_old: bool,
    without_trigger: bool,
    /// Whether `old` was refused the old addresses. Then, and after it took them, this run leaves `old` as it is: if
    /// another client releases its addresses again and again, the move goes on without them.
    without_old: bool,
    took_old: bool,
    deleted_trigger: bool,
    /// Whether this run began the grace period. If another client removes its beginning, the period is not begun again.
    began_grace: bool,
    /// What did not go as planned, as text for the outcome.
    pub notes: Vec<String>,
}

impl Progress {
    /// The run that recorded the move. By default, a run finishes what another one began.
    pub fn of_first_run() -> Self {
        Self { recorded: true, ..Self::default() }
    }

    pub fn fail(&mut self, reason: String) {
        if self.failure.is_none() {
            self.notes.push(reason.clone());
            self.failure = Some(reason);
        }
    }

    /// Notes the answer to the request of a step. Returns whether to wait before the objects are read again: a move
    /// whose requests fail again and again takes too long, and ends.
    pub fn answered(&mut self, step: &SeamlessStep, answer: Result<(), &Refusal>) -> bool {
        use SeamlessStep::{BeginGrace, Create, Delete, Release, ReleaseOld, TakeOld, TryOld};
        let Err(refusal) = answer else {
            self.tried_old |= *step == TryOld;
            self.took_old |= *step == TakeOld;
            self.began_grace |= *step == BeginGrace;
            self.deleted_trigger |= *step == Delete(Role::Trigger);
            return false;
        };
        if refusal.is_uncertain() {
            return true;
        }
        match (step, refusal) {
            // Another client has changed the object, or deleted it.
            (_, Refusal::Conflict) | (Delete(_) | ReleaseOld | TakeOld | TryOld | BeginGrace, Refusal::Gone) => {}
            (Create(Role::Trigger), _) => self.without_trigger = true,
            // As long as the Service has the old address, this is the expected answer.
            (TryOld, Refusal::Address { .. } | Refusal::Port { .. }) => self.tried_old = true,
            (TakeOld, _) => {
                self.without_old = true;
                self.notes.push(format!("its old address stopped answering at once: {refusal}"));
            }
            // The period then counts from the record of the move.
            (BeginGrace, _) => self.began_grace = true,
            (Create(_) | ReleaseOld | TryOld | Release, _) => {
                self.new_was_refused |= matches!((step, refusal), (Create(Role::New), Refusal::Address { .. }));
                self.fail(refusal.to_string());
            }
            _ => return true,
        }
        false
    }
}

/// A request of a seamless move to the API server, about the Service with this namespace and name.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    pub verb: Verb,
    pub namespace: String,
    pub name: String,
    /// The Service; for a deletion, the options that name the UID and the version to delete.
    pub body: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    /// The body names the UID and the version that it replaces.
    Replace,
    /// A replacement of which nothing is stored.
    TryReplace,
    Delete,
}

/// The fields of a spec that decide where and how its traffic goes.
pub(crate) const COPIED: [&str; 9] = [
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

/// The request of a step, if it sends one and its object exists. `now` is the time in seconds since 1970.
pub fn request(step: &SeamlessStep, seen: &Observed, journal: &Journal, now: i64) -> Option<Request> {
    let plan = journal.seamless.as_ref()?;
    let service = (journal.namespace.as_str(), journal.name.as_str());
    let old = plan.place(Role::Old, journal);
    let taking = || Some(at_old_address(seen.old.as_ref()?, journal));
    let (verb, (namespace, name), body) = match step {
        SeamlessStep::Create(role) => {
            let place = plan.place(*role, journal);
            (Verb::Create, place, temporary(*role, place, seen, journal))
        }
        SeamlessStep::ReleaseOld => (Verb::Replace, old, without_address(seen.old.as_ref()?, plan)),
        SeamlessStep::TryOld => (Verb::TryReplace, old, taking()?),
        SeamlessStep::TakeOld => (Verb::Replace, old, taking()?),
        SeamlessStep::BeginGrace => {
            let mut begun = step::bare(seen.old.as_ref()?);
            step::annotate(&mut begun, SWAPPED_ANNOTATION, Some(&now.to_string()));
            (Verb::Replace, old, begun)
        }
        SeamlessStep::Release => (Verb::Replace, service, step::released(seen.service.as_ref()?, journal)),
        SeamlessStep::PreventRelease => {
            (Verb::Replace, service, step::marked(seen.service.as_ref()?, journal, &journal.to))
        }
        SeamlessStep::Delete(role) => {
            let object = match role {
                Role::New => &seen.new,
                Role::Old => &seen.old,
                Role::Trigger => &seen.trigger,
            };
            let metadata = object.as_ref()?.get("metadata")?;
            let this = json!({"uid": metadata.get("uid")?, "resourceVersion": metadata.get("resourceVersion")?});
            (Verb::Delete, plan.place(*role, journal), json!({"preconditions": this}))
        }
        SeamlessStep::Original(_) | SeamlessStep::GiveUp(_) | SeamlessStep::Wait(_) | SeamlessStep::End => return None,
    };
    Some(Request { verb, namespace: namespace.to_owned(), name: name.to_owned(), body })
}

fn temporary(role: Role, (namespace, name): (&str, &str), seen: &Observed, journal: &Journal) -> Value {
    let original = seen.service.as_ref().and_then(|service| service.get("metadata")?.get("annotations"));
    let copied = |key: &&str| Some(((*key).to_owned(), original?.get(*key)?.clone()));
    let mut annotations: Map<String, Value> = COPIED_ANNOTATIONS.iter().filter_map(copied).collect();
    annotations.insert(MOVE_ANNOTATION.to_owned(), "never".into());
    annotations.insert(SERVICE_ANNOTATION.to_owned(), in_service_annotation(&journal.namespace, &journal.name).into());
    let mut metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": role.labels(),
        "annotations": annotations,
    });
    if role != Role::Trigger {
        metadata["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Service", "name": journal.name, "uid": journal.uid}]);
    }
    let spec = match role {
        Role::Trigger => json!({"type": "ClusterIP", "ports": [{"port": 1, "protocol": "TCP"}]}),
        Role::New => spec_at(journal, &journal.to).into(),
        Role::Old => spec_at(journal, &[]).into(),
    };
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
}

/// The spec of a temporary Service that sends traffic where the Service sends it, with these addresses.
fn spec_at(journal: &Journal, addresses: &[IpAddr]) -> Map<String, Value> {
    let copied = |key: &&str| Some(((*key).to_owned(), journal.spec.get(*key)?.clone()));
    let mut spec: Map<String, Value> = COPIED.iter().filter_map(copied).collect();
    spec.insert("type".to_owned(), "ClusterIP".into());
    step::drop_ports(&mut spec, |_| true);
    step::set_addresses(&mut spec, addresses);
    spec
}

fn without_address(old: &Value, plan: &Plan) -> Value {
    let mut old = step::bare(old);
    if let Some(spec) = old.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("type".into(), "ExternalName".into());
        spec.insert("externalName".into(), plan.external_name_of_old().into());
    }
    old
}

/// `old` with the old addresses. Its grace period has not begun.
fn at_old_address(old: &Value, journal: &Journal) -> Value {
    let mut old = step::bare(old);
    old["spec"] = spec_at(journal, &journal.from).into();
    step::annotate(&mut old, SWAPPED_ANNOTATION, None);
    step::annotate(&mut old, MOVING_ANNOTATION, None);
    old
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
