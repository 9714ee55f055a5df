//! A model of one kube-proxy and of the controller that writes EndpointSlices, and the promises about addresses.
//!
//! kube-proxy programs a change at once if its last one is longer ago than its `minSyncPeriod`, and otherwise all
//! changes together when that time is over. The requests of a swap take less time than that, unless something goes
//! wrong. So time passes only while a run waits, and after a failure.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_core::service::addresses;
use clusterip_moves::temporary::Role;
use serde_json::Value;

use super::api_server::{NEW, OLD, SERVICE, TRIGGER, is_alias};
use super::world::{Touched, World, journal};

/// The `minSyncPeriod` of kube-proxy.
const MIN_SYNC_PERIOD: Duration = Duration::from_secs(1);
/// A time in which everything is programmed.
pub const LONG: Duration = Duration::from_secs(10);

/// What has been programmed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Programmed {
    old_answers: bool,
    new_answers: bool,
    /// Whether the last change was programmed less than the `minSyncPeriod` ago.
    waits: bool,
    /// Whether the EndpointSlices of `new`, and of `old`, list the endpoints.
    has_endpoints: [bool; 2],
    /// Whether a failure or another writer has interrupted a swap. The promises about the addresses do not hold until
    /// both answer again.
    is_interrupted: bool,
}

/// What kube-proxy reads of the Services: their addresses, and whether `trigger` exists.
pub type Seen = ([Vec<IpAddr>; 3], bool);

impl World {
    pub fn seen_by_kube_proxy(&self) -> Seen {
        let at = |place: usize| match self.objects[place].as_deref() {
            Some(object) if !is_alias(object) => addresses(object),
            _ => Vec::new(),
        };
        ([at(SERVICE), at(NEW), at(OLD)], self.objects[TRIGGER].is_some())
    }

    /// Notices a write. `before` is what kube-proxy had read before it.
    pub fn notice(&mut self, place: usize, before: &Seen, is_new: bool) {
        if is_new && let Some(slices) = slices(place) {
            self.programmed.has_endpoints[slices] = false;
        }
        if self.seen_by_kube_proxy() != *before && !self.programmed.waits {
            self.program();
            self.programmed.waits = true;
        }
        self.check_answers();
    }

    /// Writes the EndpointSlices of the temporary Services. Those of a Service without an address are not updated.
    pub fn write_endpoints(&mut self) {
        for place in [NEW, OLD] {
            let has_address = self.objects[place].as_deref().is_some_and(|object| !is_alias(object));
            if let Some(slices) = slices(place).filter(|_| has_address) {
                self.programmed.has_endpoints[slices] = true;
            }
        }
    }

    /// Lets time pass without a request.
    pub fn pass(&mut self, time: Duration) {
        if time < MIN_SYNC_PERIOD {
            return;
        }
        // The EndpointSlices may be written later than kube-proxy programs the Service.
        self.program();
        self.check_answers();
        self.write_endpoints();
        self.program();
        self.check_answers();
        let Programmed { old_answers, new_answers, .. } = self.programmed;
        let is_touched = self.touched != Touched::default() || !self.taken_by_others.is_empty();
        self.programmed.is_interrupted &= is_touched || self.swaps() || !(old_answers && new_answers);
        self.programmed.waits = false;
    }

    /// Lets the time of a failure pass. From the change of `trigger` on, this may interrupt a swap.
    pub fn fail(&mut self) {
        self.programmed.is_interrupted |= self.swaps();
        self.pass(LONG);
    }

    /// Whether a swap is under way, or comes next.
    fn swaps(&self) -> bool {
        self.objects[SERVICE].as_deref().is_some_and(is_alias) || self.objects[TRIGGER].is_some()
    }

    /// Notes that another writer or a late request has changed something that a swap depends on.
    pub fn interrupt(&mut self) {
        self.programmed.is_interrupted = true;
    }

    /// Whether the EndpointSlices of the temporary Services list the endpoints. Those of `old` do not matter any more
    /// when it has released its address.
    pub fn endpoints_match(&self, old: Option<&Value>) -> bool {
        let [new, of_old] = self.programmed.has_endpoints;
        new && (of_old || old.is_some_and(is_alias))
    }

    fn program(&mut self) {
        let (journal, _) = journal();
        let answers = |wanted: &[IpAddr]| {
            [(SERVICE, None), (NEW, Some(Role::New)), (OLD, Some(Role::Old))].into_iter().any(|(place, role)| {
                let object = self.objects[place].as_deref();
                let serves = role.is_none_or(|role| self.temporary(role, journal).is_ours());
                let has_endpoints = slices(place).is_none_or(|slices| self.programmed.has_endpoints[slices]);
                serves && has_endpoints && object.is_some_and(|object| !is_alias(object) && addresses(object) == wanted)
            })
        };
        let (old_answers, new_answers) = (answers(&journal.from), answers(&journal.to));
        (self.programmed.old_answers, self.programmed.new_answers) = (old_answers, new_answers);
    }

    /// Checks that the old address answers until the grace period ends, and the new one when the name leads to it.
    fn check_answers(&mut self) {
        let (journal, _) = journal();
        let Programmed { old_answers, new_answers, .. } = self.programmed;
        let Some(service) = self.objects[SERVICE].as_deref() else { return };
        let leads_to_new = is_alias(service) || addresses(service) == journal.to;
        let old_may_end = self.clock == 2;
        let keeps = (old_answers || old_may_end) && (new_answers || !leads_to_new);
        // Two runs at once have no order in time, so one may stall within its swap.
        if keeps || self.programmed.is_interrupted || self.runs.iter().flatten().count() > 1 {
            self.programmed.is_interrupted |= !keeps;
        } else if !old_answers && !old_may_end {
            self.breaks(OLD_ANSWERS);
        } else {
            self.breaks(NEW_ANSWERS);
        }
    }

    /// Whether the name of the Service leads to an address, as DNS answers at once.
    pub fn name_resolves(&self) -> bool {
        let (journal, _) = journal();
        let Some(service) = self.objects[SERVICE].as_deref() else { return true };
        let alias_of_old = service["spec"]["externalName"] == journal.external_name();
        let (new, old) = (self.temporary(Role::New, journal), self.temporary(Role::Old, journal));
        let old_resolves = old.is_at(&journal.from) || (old.is_released(journal) && new.is_at(&journal.to));
        !is_alias(service) || (alias_of_old && old_resolves)
    }
}

/// The index of the EndpointSlices of a temporary Service.
fn slices(place: usize) -> Option<usize> {
    [NEW, OLD].iter().position(|other| *other == place)
}

pub const OLD_ANSWERS: &str = "the old address stopped answering before the grace period had ended";
pub const NEW_ANSWERS: &str = "the name leads to an address that does not answer";
pub const NAME_RESOLVES: &str = "the name has no address, and the run does not give it one at once";
