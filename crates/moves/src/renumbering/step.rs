//! Decides the next step of a renumbering.

use ipnet::IpNet;

use super::change::Direction;
use super::observed::{Held, Names, Observed, ServiceCidr, SwapState};
use super::record::{DEFAULT_SERVICE_CIDR, NEW_SERVICE_CIDR, OLD_SERVICE_CIDR, Phase, Record, Side, Swap};

/// What a command wants to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    Begin,
    Switch,
    Finish {
        /// Although something still uses the old addresses.
        force: bool,
    },
    Rollback,
}

/// A request of a step, or a wait between two. Carrying it out twice is the same as once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Makes the copied EndpointSlices of the aliases equal to those of the Service of the swap with this number.
    Copy(usize),
    CreateAlias(usize, Side),
    /// Waits until every kube-proxy has programmed what was written, and would program the next change at once.
    Settle,
    CreateTrigger,
    /// Waits until kube-proxy has programmed the trigger. From then on, kube-proxy waits before it programs changes.
    Pause,
    /// Makes the name of the Service point to this alias, so the Service releases the addresses that change. If its first
    /// address stays, it keeps that one, and points to no alias.
    PointTo(usize, Side),
    DeleteAlias(usize, Side),
    /// Gives the Service its new addresses.
    Take(usize),
    DeleteTrigger,
    DeleteCopies(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates the ServiceCIDR with this name.
    CreateServiceCidr(&'static str, Vec<IpNet>),
    DeleteServiceCidr(&'static str),
    SetPools(Direction),
    Move(Direction),
    /// Stores the phase. The swaps are recorded with [`Phase::Switching`].
    Enter(Phase),
    Send(Vec<Request>),
    /// The last step, with the message about the end.
    DeleteRecord(String),
    /// Until the cluster has done this.
    Wait(String),
    /// An administrator must do something first.
    Stop(String),
    Done(String),
}

pub fn next(goal: Goal, record: &Record, observed: &Observed) -> Step {
    match (goal, record.phase) {
        (Goal::Begin, Phase::Moving | Phase::Moved) => begin(record, observed),
        (Goal::Switch, Phase::Moved) => may_switch(record, observed),
        (Goal::Switch, Phase::Switching | Phase::Switched) => switch(record, observed),
        (Goal::Finish { force }, Phase::Switched) => may_finish(record, observed, force),
        (Goal::Finish { .. }, Phase::Finishing) => finish(record, observed),
        (Goal::Rollback, Phase::Moving | Phase::Moved) => {
            confirmed(&record.ranges, record, observed).unwrap_or(Step::Enter(Phase::RollingBack))
        }
        (Goal::Rollback, Phase::RollingBack) => roll_back(record, observed),
        (_, phase) => Step::Stop(refusal(goal, phase)),
    }
}

fn refusal(goal: Goal, phase: Phase) -> String {
    match goal {
        Goal::Rollback => {
            format!("the API servers run with the new range, so there is no way back; next: {}", phase.next())
        }
        _ => format!("the renumbering is in the phase {}; next: {}", phase.as_str(), phase.next()),
    }
}

/// The step until ServiceCIDRs beside the default one cover all addresses; `None` if they do. From then on, nothing
/// depends on the default one.
fn covered(record: &Record, observed: &Observed) -> Option<Step> {
    let new: Vec<IpNet> = record.change.0.iter().map(|pair| pair.to).collect();
    // These ranges include one that stays: its addresses would keep the default ServiceCIDR from being replaced.
    let mut needed = vec![(OLD_SERVICE_CIDR, record.ranges.clone()), (NEW_SERVICE_CIDR, new)];
    // A Service that can't move back may keep the new range from being deleted. Nothing needs that range any more, unless
    // an API server has created the default ServiceCIDR with it.
    let default = observed.service_cidrs.get(DEFAULT_SERVICE_CIDR);
    if record.phase == Phase::RollingBack && default.is_some_and(|default| default.cidrs == record.ranges) {
        needed.truncate(1);
    }
    for (name, cidrs) in needed {
        match observed.service_cidrs.get(name) {
            None => return Some(Step::CreateServiceCidr(name, cidrs)),
            Some(found) if found.is_being_deleted && name == NEW_SERVICE_CIDR && !observed.left_new.is_empty() => {
                return Some(Step::Stop(format!(
                    "ServiceCIDR {name} is being deleted, and these Services have its addresses: {}: delete these \
                     Services, or give them other addresses",
                    observed.left_new
                )));
            }
            Some(found) if found.is_being_deleted => {
                return Some(Step::Wait(format!("ServiceCIDR {name} is being deleted")));
            }
            Some(found) if found.cidrs != cidrs => {
                return Some(Step::Stop(format!("ServiceCIDR {name} has other ranges: delete it")));
            }
            Some(_) => {}
        }
    }
    None
}

fn begin(record: &Record, observed: &Observed) -> Step {
    if let Some(step) = covered(record, observed) {
        return step;
    }
    if observed.has_old_pools {
        return Step::SetPools(Direction::Forward);
    }
    if !observed.has_moved {
        return Step::Move(Direction::Forward);
    }
    if record.phase == Phase::Moving {
        return Step::Enter(Phase::Moved);
    }
    let moved = match observed.left_old.is_empty() {
        true => "the Services have moved".to_owned(),
        false => format!("the other Services have moved, and these stay: {}", observed.left_old),
    };
    Step::Done(format!("{moved}; next: {}", record.phase.next()))
}

/// The step until it is certain that all API servers run with a flag of these ranges; `None` if it is certain.
///
/// An API server does not show its flag. But one of them creates the default ServiceCIDR again from its flag when that
/// is deleted, and the others report if their flags differ from it.
fn confirmed(wanted: &[IpNet], record: &Record, observed: &Observed) -> Option<Step> {
    let default = observed.service_cidrs.get(DEFAULT_SERVICE_CIDR);
    let Some(ServiceCidr { cidrs, is_being_deleted: false, is_settled }) = default else {
        return Some(Step::Wait("the API server creates the default ServiceCIDR again".to_owned()));
    };
    let is_wanted = cidrs == wanted;
    if is_wanted && observed.other_flags.is_empty() {
        return (!is_settled)
            .then(|| Step::Wait("the API servers compare the default ServiceCIDR with their flags".into()));
    }
    if !observed.has_replaced_default {
        return Some(covered(record, observed).unwrap_or(Step::DeleteServiceCidr(DEFAULT_SERVICE_CIDR)));
    }
    let why = match observed.other_flags.first() {
        Some(flag) if is_wanted => flag.clone(),
        _ => format!("the flag of one is {}", shown(cidrs)),
    };
    Some(Step::Stop(format!(
        "not all API servers run with --service-cluster-ip-range={} ({why}): restart each of them with it, and try \
         again",
        shown(wanted)
    )))
}

fn shown(ranges: &[IpNet]) -> String {
    ranges.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",")
}

fn may_switch(record: &Record, observed: &Observed) -> Step {
    if let Some(server) = observed.old_flags.first() {
        let more = match observed.old_flags.len() - 1 {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        return Step::Stop(format!(
            "{server} runs with another --service-cluster-ip-range{more}: restart it with the new one"
        ));
    }
    if let Some(server) = observed.old_certificates.first() {
        return Step::Stop(format!("{server}: add the address to its certificate, and keep the old one"));
    }
    // A Service would lose an address that no ServiceCIDR covers at the end.
    covered(record, observed)
        .or_else(|| confirmed(&record.new_ranges(), record, observed))
        .unwrap_or(Step::Enter(Phase::Switching))
}

fn switch(record: &Record, observed: &Observed) -> Step {
    let swaps = record.swaps.iter().zip(&observed.swaps).enumerate();
    for (at, (swap, state)) in swaps {
        // An API server may have been restarted with its old flag since a command that was killed has compared the flags.
        if (at, state.service) == (0, Held::Old)
            && let Some(step) = confirmed(&record.new_ranges(), record, observed)
        {
            return step;
        }
        if let Some(step) = swap_step(at, swap, state, observed.has_trigger) {
            return step;
        }
    }
    if observed.has_trigger {
        return Step::Send(vec![Request::DeleteTrigger]);
    }
    // Without a server, the API server has picked old addresses for some new Services.
    if !observed.left_old.is_empty() && !observed.has_moved {
        return Step::Move(Direction::Forward);
    }
    match record.phase {
        Phase::Switched => Step::Done(format!("the switch is done; next: {}", record.phase.next())),
        _ => Step::Enter(Phase::Switched),
    }
}

/// The next step of a swap; `None` if the swap is done. The name of the Service always points to an address that a Service
/// holds. kube-proxy knows this address, too, if no command was killed within the swap.
fn swap_step(at: usize, swap: &Swap, state: &SwapState, has_trigger: bool) -> Option<Step> {
    use Request::{
        Copy, CreateAlias, CreateTrigger, DeleteAlias, DeleteCopies, DeleteTrigger, Pause, PointTo, Settle, Take,
    };
    use Side::{New, Old};
    let send = |requests: &[Request]| Some(Step::Send(requests.to_vec()));
    let name = format!("Service {}/{}", swap.namespace, swap.name);
    for (side, held) in [(Old, state.old_alias), (New, state.new_alias)] {
        if held != Held::Absent && held != side.held() {
            let alias = swap.alias_name(side);
            return Some(Step::Stop(format!("Service {alias} is not the alias of {name}: delete Service {alias}")));
        }
    }
    match state.service {
        Held::Old if !state.has_equal_copies => send(&[Copy(at)]),
        Held::Old if state.new_alias == Held::Absent => send(&[CreateAlias(at, New)]),
        Held::Old | Held::Released => {
            // kube-proxy also programs at once that the trigger of a killed command goes.
            let trigger = if has_trigger { DeleteTrigger } else { CreateTrigger };
            let begin = [Settle, trigger, Pause, PointTo(at, New)].into_iter();
            let missing = (state.old_alias == Held::Absent).then_some(CreateAlias(at, Old));
            let end = [PointTo(at, Old), DeleteAlias(at, New), Take(at), DeleteTrigger];
            Some(Step::Send(begin.chain(missing).chain(end).collect()))
        }
        Held::New if state.old_alias == Held::Absent => send(&[CreateAlias(at, Old)]),
        Held::New if !state.has_selector => (!state.has_equal_copies).then(|| Step::Send(vec![Copy(at)])),
        Held::New if !state.has_copies => None,
        Held::New if state.has_own_endpoints => send(&[DeleteCopies(at)]),
        Held::New => Some(Step::Wait(format!("the control plane lists the endpoints of {}", swap.alias_name(Old)))),
        // While the alias has the new address, no API server can create default/kubernetes again.
        Held::Absent | Held::Other if state.new_alias == Held::New => send(&[DeleteAlias(at, New)]),
        Held::Absent | Held::Other => {
            let new = swap.new.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            Some(Step::Stop(format!(
                "{name} was deleted or has other addresses: create it again with the address {new}"
            )))
        }
    }
}

fn may_finish(record: &Record, observed: &Observed, force: bool) -> Step {
    let mut swaps = record.swaps.iter().zip(&observed.swaps);
    if let Some((swap, _)) = swaps.find(|(_, state)| state.service != Held::New) {
        let name = format!("Service {}/{}", swap.namespace, swap.name);
        return Step::Stop(format!("{name} does not have its new address: run clusterip renumber switch again"));
    }
    if !observed.left_old.is_empty() && !observed.has_moved {
        return Step::Move(Direction::Forward);
    }
    // A Service with an old address keeps it, so that no user can hold up the finish with one.
    if observed.users_of_old.is_empty() || force {
        return Step::Enter(Phase::Finishing);
    }
    Step::Stop(format!(
        "the old addresses are in use:\n  {}\nrestart these, or use --force, which cuts them off",
        observed.users_of_old.join("\n  ")
    ))
}

fn finish(record: &Record, observed: &Observed) -> Step {
    // From now on, no Service gets an address of the old ranges.
    if observed.service_cidrs.get(OLD_SERVICE_CIDR).is_some_and(|found| !found.is_being_deleted) {
        return Step::DeleteServiceCidr(OLD_SERVICE_CIDR);
    }
    let swaps = record.swaps.iter().zip(&observed.swaps).enumerate();
    for (at, (_, state)) in swaps {
        // A Service that another client has created with the name of the alias stays.
        let alias = (state.old_alias == Held::Old).then_some(Request::DeleteAlias(at, Side::Old));
        let copies = state.has_copies.then_some(Request::DeleteCopies(at));
        let requests: Vec<Request> = alias.into_iter().chain(copies).collect();
        if !requests.is_empty() {
            return Step::Send(requests);
        }
    }
    match observed.service_cidrs.get(NEW_SERVICE_CIDR) {
        Some(found) if !found.is_being_deleted => return Step::DeleteServiceCidr(NEW_SERVICE_CIDR),
        Some(_) => return Step::Wait(format!("ServiceCIDR {NEW_SERVICE_CIDR} is being deleted")),
        None => {}
    }
    if observed.service_cidrs.contains_key(OLD_SERVICE_CIDR) && observed.left_old.is_empty() {
        return Step::Wait(format!("ServiceCIDR {OLD_SERVICE_CIDR} is being deleted"));
    }
    let done = format!("the Service range is {}", shown(&record.new_ranges()));
    Step::DeleteRecord(ended(done, OLD_SERVICE_CIDR, &observed.left_old))
}

/// The message about the end. A ServiceCIDR that is being deleted gives no address away, and stays as long as a Service
/// has one of its addresses.
fn ended(done: String, range: &str, left: &Names) -> String {
    if left.is_empty() {
        return done;
    }
    format!("{done}; these Services keep their addresses, and ServiceCIDR {range} stays until they have others: {left}")
}

fn roll_back(record: &Record, observed: &Observed) -> Step {
    if let Some(step) = confirmed(&record.ranges, record, observed) {
        return step;
    }
    if observed.has_new_pools {
        return Step::SetPools(Direction::Back);
    }
    if !observed.has_moved {
        return Step::Move(Direction::Back);
    }
    for name in [NEW_SERVICE_CIDR, OLD_SERVICE_CIDR] {
        match observed.service_cidrs.get(name) {
            Some(found) if !found.is_being_deleted => return Step::DeleteServiceCidr(name),
            // Any user can make a Service that can't move back. It keeps its address.
            Some(_) if name == NEW_SERVICE_CIDR && !observed.left_new.is_empty() => {}
            Some(_) => return Step::Wait(format!("ServiceCIDR {name} is being deleted")),
            None => {}
        }
    }
    Step::DeleteRecord(ended("the renumbering is rolled back".to_owned(), NEW_SERVICE_CIDR, &observed.left_new))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::change::Change;
    use super::*;

    fn record(phase: Phase) -> Record {
        let range = |range: &str| vec![range.parse().unwrap()];
        let change = Change::new(&range("10.96.0.0/24"), &range("10.100.0.0/24")).unwrap();
        let service =
            json!({"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": {"clusterIP": "10.96.0.1"}});
        let swaps = vec![Swap::of(&service, &change).unwrap().unwrap()];
        Record { phase, swaps, ..Record::new(change, range("10.96.0.0/24")) }
    }

    /// States that a renumbering does not reach by itself.
    #[test]
    fn switch_says_what_to_do_if_others_have_written_its_services() {
        struct Case {
            name: &'static str,
            state: SwapState,
            expected: Step,
        }
        let foreign = |alias: &str| {
            Step::Stop(format!(
                "Service {alias} is not the alias of Service default/kubernetes: delete Service {alias}"
            ))
        };
        let gone = || {
            Step::Stop(
                "Service default/kubernetes was deleted or has other addresses: create it again with the address \
                 10.100.0.1"
                    .to_owned(),
            )
        };
        let (held, none) = (Held::New, SwapState::default());
        for Case { name, state, expected } in [
            Case {
                name: "a Service with the name of the alias",
                state: SwapState { service: Held::Released, old_alias: Held::Other, ..none },
                expected: foreign("clusterip-alias-kubernetes"),
            },
            Case {
                name: "a Service with the name of the other alias",
                state: SwapState { service: Held::Released, new_alias: Held::Other, ..none },
                expected: foreign("clusterip-alias-new-kubernetes"),
            },
            Case {
                name: "deleted while an alias has its new address",
                state: SwapState { new_alias: held, ..none },
                expected: Step::Send(vec![Request::DeleteAlias(0, Side::New)]),
            },
            Case { name: "deleted", state: none, expected: gone() },
            Case { name: "other addresses", state: SwapState { service: Held::Other, ..none }, expected: gone() },
        ] {
            let observed = Observed { swaps: vec![state], ..Observed::default() };
            assert_eq!(next(Goal::Switch, &record(Phase::Switching), &observed), expected, "{name}");
        }
        let state = SwapState { service: Held::Released, ..none };
        let observed = Observed { swaps: vec![state], ..Observed::default() };
        let expected = Step::Stop(
            "Service default/kubernetes does not have its new address: run clusterip renumber switch again".into(),
        );
        assert_eq!(next(Goal::Finish { force: true }, &record(Phase::Switched), &observed), expected);
    }
}
