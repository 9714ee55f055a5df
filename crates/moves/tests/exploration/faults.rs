//! Deliberate faults in the steps, which the exploration has to find.

use std::net::IpAddr;

use clusterip_moves::journal::Journal;
use clusterip_moves::seamless::progress::Progress;
use clusterip_moves::seamless::temporary::Role;
use clusterip_moves::seamless::{Moment, Observed, Plan, SeamlessStep, Wait, next};
use clusterip_moves::step::Step;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `new` is deleted before the Service points at it.
    NewDeletedEarly,
    /// The API server is not told which version of an object a request is about.
    NoPreconditions,
    /// Swap 1 is made without `trigger`.
    NoTrigger,
    /// `old` is created after swap 1, so its EndpointSlices come late.
    OldCreatedLate,
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
    /// `old` does not take the old address, which does not answer then.
    OldNotTaken,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 13] = [
        Self::NewDeletedEarly,
        Self::NoPreconditions,
        Self::NoTrigger,
        Self::OldCreatedLate,
        Self::NoGracePeriod,
        Self::ReleaseNotPrevented,
        Self::RecordDeletedEarly,
        Self::LaterRunCreates,
        Self::ForeignDeleted,
        Self::OldInTheWay,
        Self::NoCleanup,
        Self::LeftBehind,
        Self::OldNotTaken,
    ];

    /// How many acts of other writers it takes to find the fault.
    pub fn other_writers(self) -> u8 {
        match self {
            Self::NoPreconditions | Self::ForeignDeleted | Self::OldInTheWay | Self::LeftBehind => 1,
            _ => 0,
        }
    }

    /// How many leaders take over while the first run goes on.
    pub fn leaders(self) -> u8 {
        u8::from(matches!(self, Self::ReleaseNotPrevented | Self::LaterRunCreates))
    }
}

/// The next step, with a fault.
pub fn decide(
    fault: Option<Fault>,
    seen: &Observed,
    (journal, plan): (&Journal, &Plan),
    progress: &Progress,
    moment: &Moment,
    target: &[IpAddr],
) -> SeamlessStep {
    let moment = match fault {
        Some(Fault::RecordDeletedEarly) => &Moment { requests_ended: true, ..*moment },
        Some(Fault::NoGracePeriod) => &Moment { now: moment.now + 100_000, ..*moment },
        _ => moment,
    };
    let step = next(seen, journal, plan, progress, moment, target);
    match (fault, &step) {
        (Some(Fault::NewDeletedEarly), SeamlessStep::Release) if seen.new.is_some() => SeamlessStep::Delete(Role::New),
        (Some(Fault::NewDeletedEarly), SeamlessStep::Create(Role::New)) if seen.trigger.is_some() => {
            SeamlessStep::Release
        }
        (Some(Fault::NoTrigger), SeamlessStep::Create(Role::Trigger)) => SeamlessStep::Release,
        (Some(Fault::OldCreatedLate), SeamlessStep::Create(Role::Old)) => SeamlessStep::Create(Role::Trigger),
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
        (Some(Fault::NoCleanup), SeamlessStep::Original(Step::Cleanup)) => match seen.old {
            Some(_) => SeamlessStep::Delete(Role::Old),
            None => SeamlessStep::End,
        },
        (Some(Fault::LeftBehind), SeamlessStep::Delete(_)) if seen.service.is_none() => SeamlessStep::End,
        (Some(Fault::OldNotTaken), SeamlessStep::TakeOld) => SeamlessStep::Wait(Wait::Requests),
        _ => step,
    }
}
