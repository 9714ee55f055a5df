//! Deliberate faults in the steps, which the exploration has to find.

use std::net::IpAddr;

use clusterip_moves::journal::Journal;
use clusterip_moves::seamless::{Moment, Observed, Progress, SeamlessStep, Wait, next};
use clusterip_moves::step::{self, Step};
use clusterip_moves::temporary::Role;

use super::api_server::{SHOWN_BY_ONE, is_alias};
use super::kube_proxy::{LONG, NAME_RESOLVES, NEW_ANSWERS, OLD_ANSWERS};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `new` is deleted before the Service points at it.
    NewDeletedEarly,
    /// The API server is not told which version of an object a request is about.
    NoPreconditions,
    /// Swap 1 is made without `trigger`.
    NoTrigger,
    /// `trigger` stays until swap 2 is over.
    NoSecondTrigger,
    /// The EndpointSlices of the temporary Services are not waited for.
    EndpointsNotAwaited,
    /// kube-proxy is not waited for before swap 1.
    KubeProxyNotAwaited,
    /// The Service gets its new address some time after `new` is deleted.
    AssignedLate,
    /// `old` is deleted before the grace period has ended.
    NoGracePeriod,
    /// The move is undone although a release may still arrive.
    ReleaseNotPrevented,
    /// The record is deleted although a creation may still arrive.
    RecordDeletedEarly,
    /// A later run creates temporary Services.
    LaterRunCreates,
    /// A foreign Service with the name of a temporary one is deleted.
    ForeignDeleted,
    /// The Service is to go back to the old address while `old` has it.
    OldInTheWay,
    /// The Service keeps the marker.
    NoCleanup,
    /// Temporary Services of a Service that is gone stay.
    LeftBehind,
    /// The status is restored although another Service has its IP.
    StatusNotCompared,
    /// `old` does not take the old address, which does not answer then.
    OldNotTaken,
}

/// How the exploration finds a fault.
pub struct Finding {
    pub fault: Fault,
    /// The promise that the fault breaks.
    pub broken: &'static str,
    /// How many acts of other writers it takes.
    pub other_writers: u8,
    /// How many leaders have to take over while the first run goes on.
    pub leaders: u8,
}

/// All faults.
pub const FINDINGS: [Finding; 17] = [
    alone(Fault::NewDeletedEarly, "the Service points at a name without an address"),
    alone(Fault::NoTrigger, OLD_ANSWERS),
    alone(Fault::NoSecondTrigger, NEW_ANSWERS),
    alone(Fault::EndpointsNotAwaited, OLD_ANSWERS),
    alone(Fault::KubeProxyNotAwaited, NEW_ANSWERS),
    alone(Fault::AssignedLate, NEW_ANSWERS),
    alone(Fault::NoGracePeriod, OLD_ANSWERS),
    alone(Fault::OldNotTaken, NAME_RESOLVES),
    alone(Fault::RecordDeletedEarly, "the temporary Service new remains"),
    alone(Fault::NoCleanup, "the marker remains"),
    Finding { leaders: 1, ..alone(Fault::ReleaseNotPrevented, "the temporary Service old remains") },
    Finding { leaders: 1, ..alone(Fault::LaterRunCreates, "the temporary Service new remains") },
    Finding { other_writers: 1, ..alone(Fault::NoPreconditions, "a change of another client was lost") },
    Finding { other_writers: 1, ..alone(Fault::ForeignDeleted, "an object of another client was deleted") },
    Finding { other_writers: 1, ..alone(Fault::OldInTheWay, "the move does not end") },
    Finding { other_writers: 1, ..alone(Fault::LeftBehind, "the temporary Service new remains") },
    Finding { other_writers: 1, ..alone(Fault::StatusNotCompared, SHOWN_BY_ONE) },
];

/// A fault that is found without other writers and other leaders.
const fn alone(fault: Fault, broken: &'static str) -> Finding {
    Finding { fault, broken, other_writers: 0, leaders: 0 }
}

/// The next step, with a fault.
pub fn decide(
    fault: Option<Fault>,
    seen: &Observed,
    journal: &Journal,
    progress: &Progress,
    moment: &Moment,
    target: &[IpAddr],
) -> SeamlessStep {
    let has_address = seen.service.as_ref().is_none_or(|service| !is_alias(service));
    let moment = match fault {
        Some(Fault::RecordDeletedEarly) => &Moment { requests_ended: true, ..*moment },
        Some(Fault::NoGracePeriod) => &Moment { now: moment.now + 100_000, ..*moment },
        Some(Fault::EndpointsNotAwaited) => &Moment { endpoints_match: true, ..*moment },
        Some(Fault::KubeProxyNotAwaited) if has_address && seen.trigger.is_none() => {
            &Moment { since_write: LONG, ..*moment }
        }
        _ => moment,
    };
    let next = |seen: &Observed| next(seen, journal, progress, moment, target);
    let step = next(seen);
    match (fault, &step) {
        (Some(Fault::NewDeletedEarly), SeamlessStep::Release) if seen.new.is_some() => SeamlessStep::Delete(Role::New),
        (Some(Fault::NewDeletedEarly), SeamlessStep::Create(Role::New)) if seen.trigger.is_some() => {
            SeamlessStep::Release
        }
        (Some(Fault::NoTrigger), SeamlessStep::Create(Role::Trigger)) => SeamlessStep::Release,
        (Some(Fault::NoSecondTrigger), SeamlessStep::Delete(Role::Trigger)) if !has_address => {
            SeamlessStep::Delete(Role::New)
        }
        (Some(Fault::AssignedLate), SeamlessStep::Original(Step::Assign)) if moment.since_write.is_zero() => {
            SeamlessStep::Wait(Wait::For(LONG))
        }
        (Some(Fault::ReleaseNotPrevented), SeamlessStep::PreventRelease) => match () {
            () if seen.new.is_some() => SeamlessStep::Delete(Role::New),
            () if seen.old.is_some() => SeamlessStep::Delete(Role::Old),
            () if seen.trigger.is_some() => SeamlessStep::Delete(Role::Trigger),
            () => SeamlessStep::End,
        },
        (Some(Fault::ForeignDeleted), SeamlessStep::GiveUp(role)) => SeamlessStep::Delete(*role),
        (Some(Fault::OldInTheWay), SeamlessStep::Delete(Role::Old)) if target.contains(&journal.from[0]) => {
            SeamlessStep::Original(Step::Assign)
        }
        // As if the Service had no marker.
        (Some(Fault::NoCleanup), SeamlessStep::Original(Step::Cleanup)) => {
            let clean = seen.service.as_ref().map(|service| step::cleaned_up(service, journal, false));
            next(&Observed { service: clean, ..seen.clone() })
        }
        (Some(Fault::LeftBehind), SeamlessStep::Delete(_)) if seen.service.is_none() => SeamlessStep::End,
        // As if there were no `old`.
        (Some(Fault::OldNotTaken), SeamlessStep::TakeOld) => next(&Observed { old: None, ..seen.clone() }),
        _ => step,
    }
}
