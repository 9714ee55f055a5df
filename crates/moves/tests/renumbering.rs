//! Explores, on a model of a cluster, all orders in which commands send their requests and are killed, the last request of
//! a killed command arrives late or never, API servers act, and the administrator restarts them. The exploration also
//! finds the faults that are put into the steps on purpose.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use clusterip_moves::renumbering::change::{Change, Direction};
use clusterip_moves::renumbering::observed::{Held, Names, Observed, ServiceCidr, SwapState};
use clusterip_moves::renumbering::record::{
    DEFAULT_SERVICE_CIDR, NEW_SERVICE_CIDR, OLD_SERVICE_CIDR, Phase, Record, Side, Swap,
};
use clusterip_moves::renumbering::step::{self, Goal, Request, Step};
use ipnet::IpNet;
use serde_json::json;

/// `default/kubernetes`, and the Service of DNS, which has a selector.
const SWAPS: usize = 2;
const API_SERVERS: usize = 2;
const GOALS: [Goal; 5] =
    [Goal::Begin, Goal::Switch, Goal::Finish { force: false }, Goal::Finish { force: true }, Goal::Rollback];

type Next = fn(Goal, &Record, &Observed) -> Step;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Range {
    Absent,
    Present { is_new: bool, is_being_deleted: bool },
}

/// A Service that is swapped, and its aliases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Swapped {
    service: Held,
    /// The alias to which the name of a released Service points.
    points_to: Side,
    old_alias: Held,
    new_alias: Held,
    copies: bool,
}

/// What a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Write {
    CreateServiceCidr { name: &'static str, is_new: bool },
    DeleteServiceCidr(&'static str),
    SetPools { are_new: bool },
    Move { is_new: bool },
    Enter(Phase),
    DeleteRecord,
    Send(Request),
}

/// The command that runs, and what it remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    goal: Goal,
    /// It waits for the last request of a command that was killed.
    waits: bool,
    requests: Vec<Request>,
    has_moved: bool,
    has_replaced_default: bool,
}

impl Running {
    fn new(goal: Goal) -> Self {
        Self { goal, waits: false, requests: Vec::new(), has_moved: false, has_replaced_default: false }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// `None` before the first and after the last command.
    phase: Option<Phase>,
    has_swaps: bool,
    default: Range,
    old: Range,
    new: Range,
    /// Whether each API server has compared the default ServiceCIDR with its flag, and one reports a difference.
    is_settled: bool,
    differs: bool,
    /// Whether each API server runs with the new flag.
    flags: [bool; API_SERVERS],
    pools_are_new: bool,
    shop_is_new: bool,
    swapped: [Swapped; SWAPS],
    trigger: bool,
    users_of_old: bool,
    /// A Service that can't move.
    shop_stays: bool,
    /// Another Service has the new address of `default/kubernetes`.
    taken: bool,
    running: Option<Running>,
    /// The record says that a command runs: one that was killed, if none does.
    is_running: bool,
    /// The last request of a command that was killed, which may still arrive.
    late: Option<Write>,
    /// A renumbering has begun.
    has_begun: bool,
}

fn nets(range: &str) -> Vec<IpNet> {
    vec![range.parse().unwrap()]
}

fn record(phase: Phase, has_swaps: bool) -> Record {
    let change = Change::new(&nets("10.96.0.0/24"), &nets("10.100.0.0/24")).unwrap();
    let service = |namespace: &str, name: &str, address: &str, selector| {
        let service = json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": address, "selector": selector, "ports": [{"port": 53}]}});
        Swap::of(&service, &change).unwrap().unwrap()
    };
    let swaps = vec![
        service("default", "kubernetes", "10.96.0.1", json!({})),
        service("kube-system", "kube-dns", "10.96.0.10", json!({"k8s-app": "kube-dns"})),
    ];
    let mut record = Record::new(change, nets("10.96.0.0/24"));
    record.phase = phase;
    record.swaps = if has_swaps { swaps } else { Vec::new() };
    record
}

impl World {
    fn new() -> Self {
        let (old_alias, new_alias) = (Held::Absent, Held::Absent);
        let one = Swapped { service: Held::Old, points_to: Side::New, old_alias, new_alias, copies: false };
        Self {
            phase: None,
            has_swaps: false,
            default: Range::Present { is_new: false, is_being_deleted: false },
            old: Range::Absent,
            new: Range::Absent,
            is_settled: true,
            differs: false,
            flags: [false; API_SERVERS],
            pools_are_new: false,
            shop_is_new: false,
            swapped: [one; SWAPS],
            trigger: false,
            users_of_old: true,
            shop_stays: false,
            taken: false,
            running: None,
            is_running: false,
            late: None,
            has_begun: false,
        }
    }

    fn observed(&self, running: &Running) -> Observed {
        let mut ranges = BTreeMap::new();
        for (name, range) in
            [(DEFAULT_SERVICE_CIDR, self.default), (OLD_SERVICE_CIDR, self.old), (NEW_SERVICE_CIDR, self.new)]
        {
            if let Range::Present { is_new, is_being_deleted } = range {
                let cidrs = nets(if is_new { "10.100.0.0/24" } else { "10.96.0.0/24" });
                ranges.insert(name.to_owned(), ServiceCidr { cidrs, is_being_deleted, is_settled: self.is_settled });
            }
        }
        let names = |is_there: bool, what: &str| is_there.then(|| what.to_owned()).into_iter().collect::<Names>();
        Observed {
            service_cidrs: ranges,
            other_flags: names(self.differs, "another flag"),
            old_flags: Vec::new(),
            old_certificates: Vec::new(),
            has_old_pools: !self.pools_are_new,
            has_new_pools: self.pools_are_new,
            swaps: if self.has_swaps { self.states() } else { Vec::new() },
            has_trigger: self.trigger,
            left_old: names(!self.shop_is_new, "Service shop/web"),
            left_new: names(self.shop_is_new, "Service shop/web"),
            users_of_old: names(self.users_of_old, "Pod shop/client").texts(),
            has_moved: running.has_moved,
            has_replaced_default: running.has_replaced_default,
        }
    }

    fn states(&self) -> Vec<SwapState> {
        let state = |(at, one): (usize, &Swapped)| SwapState {
            service: one.service,
            old_alias: one.old_alias,
            new_alias: one.new_alias,
            has_selector: at == 1,
            has_equal_copies: one.copies,
            has_copies: one.copies,
            // The control plane lists the endpoints of an alias with a selector soon.
            has_own_endpoints: at == 1 && one.old_alias == Held::Old,
        };
        self.swapped.iter().enumerate().map(state).collect()
    }

    fn range(&mut self, name: &str) -> &mut Range {
        match name {
            DEFAULT_SERVICE_CIDR => &mut self.default,
            OLD_SERVICE_CIDR => &mut self.old,
            _ => &mut self.new,
        }
    }

    /// The range of the default ServiceCIDR has changed: the API servers compare it again.
    fn forget_comparison(&mut self) {
        (self.is_settled, self.differs) = (false, false);
    }

    /// An object that another command has changed in the meantime is not changed by a write that names its version.
    fn write(&mut self, write: Write) {
        match write {
            Write::CreateServiceCidr { name, is_new } => {
                if *self.range(name) == Range::Absent {
                    *self.range(name) = Range::Present { is_new, is_being_deleted: false };
                }
            }
            Write::DeleteServiceCidr(name) => {
                if let Range::Present { is_being_deleted, .. } = self.range(name) {
                    *is_being_deleted = true;
                }
            }
            Write::SetPools { are_new } => {
                self.pools_are_new = are_new;
                self.late = self.late.filter(|late| !matches!(late, Write::SetPools { .. }));
            }
            Write::Move { is_new } => self.shop_is_new = if self.shop_stays { self.shop_is_new } else { is_new },
            Write::Enter(phase) => {
                self.phase = Some(phase);
                self.has_swaps |= phase == Phase::Switching;
            }
            Write::DeleteRecord => (self.phase, self.is_running) = (None, false),
            Write::Send(request) => self.send(request),
        }
        if matches!(write, Write::Enter(_) | Write::DeleteRecord) {
            self.late = self.late.filter(|late| !matches!(late, Write::Enter(_) | Write::DeleteRecord));
        }
    }

    fn send(&mut self, request: Request) {
        match request {
            Request::Pause | Request::Settle => {}
            Request::CreateTrigger => self.trigger = true,
            Request::DeleteTrigger => self.trigger = false,
            // The API server refuses an address that another Service has, or that no range has.
            Request::CreateAlias(0, Side::New) if self.taken => {}
            Request::CreateAlias(at, Side::New)
                if self.swapped[at].service != Held::New && self.is_covered(true, None) =>
            {
                self.swapped[at].new_alias = Held::New;
            }
            Request::CreateAlias(at, Side::Old)
                if self.swapped[at].service != Held::Old && self.is_covered(false, None) =>
            {
                self.swapped[at].old_alias = Held::Old;
            }
            Request::CreateAlias(..) => {}
            Request::PointTo(at, Side::New) if self.swapped[at].service == Held::Old => {
                (self.swapped[at].service, self.swapped[at].points_to) = (Held::Released, Side::New);
            }
            Request::PointTo(at, Side::Old) if self.swapped[at].service == Held::Released => {
                self.swapped[at].points_to = Side::Old;
            }
            Request::PointTo(..) => {}
            Request::Take(at) => {
                let one = self.swapped[at];
                let is_free = one.new_alias == Held::Absent && !(at == 0 && self.taken);
                if one.service == Held::Released && is_free && self.is_covered(true, None) {
                    self.swapped[at].service = Held::New;
                }
            }
            Request::Copy(at) => self.swapped[at].copies = true,
            Request::DeleteCopies(at) => self.swapped[at].copies = false,
            Request::DeleteAlias(at, Side::New) => self.swapped[at].new_alias = Held::Absent,
            Request::DeleteAlias(at, Side::Old) => self.swapped[at].old_alias = Held::Absent,
        }
    }

    /// All states that follow. `waits` is whether a command waits for the last request of a killed one.
    fn following(&self, next: Next, waits: bool) -> Vec<Self> {
        let mut all = Vec::new();
        match &self.running {
            Some(running) => {
                let (after, write) = self.after_step(running, next);
                all.extend(after);
                // The command is killed, and its last request is lost, or arrives late.
                let killed = Self { running: None, ..self.clone() };
                if write.is_some() && self.late.is_none() {
                    all.push(Self { late: write, ..killed.clone() });
                }
                all.push(killed);
            }
            None => {
                for goal in GOALS {
                    let running = Some(Running { waits: waits && self.is_running, ..Running::new(goal) });
                    if self.phase.is_some() {
                        all.push(Self { running, is_running: true, ..self.clone() });
                    } else if goal == Goal::Begin && !self.has_begun {
                        let phase = Some(Phase::Moving);
                        all.push(Self { phase, running, is_running: true, has_begun: true, ..self.clone() });
                    }
                }
            }
        }
        if let Some(late) = self.late {
            let lost = Self { late: None, ..self.clone() };
            let mut arrived = lost.clone();
            arrived.write(late);
            all.extend([lost, arrived]);
        }
        all.extend(self.after_the_cluster(next));
        all
    }

    /// The state after the next step of the command, and what it writes.
    fn after_step(&self, running: &Running, next: Next) -> (Option<Self>, Option<Write>) {
        let mut world = self.clone();
        let mut running = running.clone();
        if running.waits {
            running.waits = false;
            let after = Self { running: Some(running), ..world };
            return (self.late.is_none().then_some(after), None);
        }
        let Some(phase) = self.phase else { return (Some(Self { running: None, ..world }), None) };
        let write = if running.requests.is_empty() {
            let observed = self.observed(&running);
            match next(running.goal, &record(phase, self.has_swaps), &observed) {
                Step::CreateServiceCidr(name, cidrs) => {
                    Some(Write::CreateServiceCidr { name, is_new: cidrs == nets("10.100.0.0/24") })
                }
                Step::DeleteServiceCidr(name) => {
                    running.has_replaced_default |= name == DEFAULT_SERVICE_CIDR;
                    Some(Write::DeleteServiceCidr(name))
                }
                Step::SetPools(direction) => Some(Write::SetPools { are_new: direction == Direction::Forward }),
                Step::Move(direction) => {
                    running.has_moved = true;
                    Some(Write::Move { is_new: direction == Direction::Forward })
                }
                Step::Enter(phase) => {
                    running.has_moved &= phase != Phase::Switching;
                    Some(Write::Enter(phase))
                }
                Step::Send(requests) => {
                    running.requests = requests;
                    None
                }
                Step::DeleteRecord(_) => Some(Write::DeleteRecord),
                Step::Wait(_) => return (None, None),
                Step::Stop(_) | Step::Done(_) => {
                    return (Some(Self { running: None, is_running: false, ..world }), None);
                }
            }
        } else {
            Some(Write::Send(running.requests.remove(0)))
        };
        if let Some(write) = write {
            world.write(write);
        }
        world.running = Some(running);
        (Some(world), write)
    }

    /// What the API servers, the controller manager and the administrator do.
    fn after_the_cluster(&self, next: Next) -> Vec<Self> {
        let mut all = Vec::new();
        // A range that is being deleted goes when others cover its addresses, or no Service has one.
        for name in [DEFAULT_SERVICE_CIDR, OLD_SERVICE_CIDR, NEW_SERVICE_CIDR] {
            let mut world = self.clone();
            if let Range::Present { is_being_deleted: true, is_new } = *world.range(name)
                && (self.is_covered(is_new, Some(name)) || !self.is_used(is_new))
            {
                *world.range(name) = Range::Absent;
                all.push(world);
            }
        }
        for flag in self.flags {
            if self.default == Range::Absent {
                let mut world = self.clone();
                world.default = Range::Present { is_new: flag, is_being_deleted: false };
                world.forget_comparison();
                all.push(world);
            }
        }
        if let Range::Present { is_new, is_being_deleted: false } = self.default
            && !self.is_settled
        {
            let differs = self.flags.iter().any(|flag| *flag != is_new);
            all.push(Self { is_settled: true, differs, ..self.clone() });
        }
        // The administrator restarts an API server. After the switch, the administrator sets no flag back.
        for at in 0..API_SERVERS {
            let is_before = matches!(self.phase, Some(Phase::Moving | Phase::Moved | Phase::RollingBack));
            let may = if self.flags[at] { is_before } else { self.phase.is_some() };
            if may && self.running.is_none() {
                let mut world = self.clone();
                world.flags[at] = !world.flags[at];
                // The API servers are alike: which of them has the new flag does not matter.
                world.flags.sort_unstable();
                // The process that has started compares its flag at once.
                if let Range::Present { is_new, .. } = world.default {
                    world.differs |= self.flags[at] == is_new;
                }
                all.push(world);
            }
        }
        // A tenant writes Services, and an administrator deletes the one with the address.
        if !self.shop_stays {
            all.push(Self { shop_stays: true, ..self.clone() });
        }
        if !self.has_begun {
            all.push(Self { taken: true, ..self.clone() });
        }
        // An administrator deletes a Service if a command asks for that.
        if self.phase == Some(Phase::RollingBack) && self.shop_is_new && self.running.is_none() {
            let observed = self.observed(&Running::new(Goal::Rollback));
            if let Step::Stop(_) = next(Goal::Rollback, &record(Phase::RollingBack, self.has_swaps), &observed) {
                all.push(Self { shop_stays: false, shop_is_new: false, ..self.clone() });
            }
        }
        if self.taken {
            all.push(Self { taken: false, ..self.clone() });
        }
        if self.users_of_old && self.phase == Some(Phase::Switched) {
            all.push(Self { users_of_old: false, ..self.clone() });
        }
        all
    }

    fn is_covered(&self, is_new: bool, without: Option<&str>) -> bool {
        let ranges = [(DEFAULT_SERVICE_CIDR, self.default), (OLD_SERVICE_CIDR, self.old), (NEW_SERVICE_CIDR, self.new)];
        let others = ranges.into_iter().filter(|(name, _)| Some(*name) != without);
        others.into_iter().any(|(_, range)| range == Range::Present { is_new, is_being_deleted: false })
    }

    fn is_used(&self, is_new: bool) -> bool {
        let held = if is_new { Held::New } else { Held::Old };
        let has = |one: &Swapped| [one.service, one.old_alias, one.new_alias].contains(&held);
        self.shop_is_new == is_new || self.swapped.iter().any(has)
    }

    /// What must never be, between two requests.
    fn wrong(&self) -> Option<&'static str> {
        let is_ending = matches!(self.phase, Some(Phase::Finishing) | None);
        let swapped = |one: &Swapped| matches!(one.service, Held::New | Held::Released);
        for one in &self.swapped {
            if one.service != Held::Released && [one.old_alias, one.new_alias].contains(&one.service) {
                return Some("two Services have the same address");
            }
            let target = if one.points_to == Side::New { one.new_alias } else { one.old_alias };
            if one.service == Held::Released && target == Held::Absent {
                return Some("the name of a Service points to no address");
            }
        }
        if self.swapped[0].old_alias == Held::Old && !self.swapped[0].copies && !is_ending {
            return Some("the old address of default/kubernetes has no endpoints");
        }
        if !is_ending && self.is_used(false) && !self.is_covered(false, None) {
            return Some("no range covers the old addresses");
        }
        if self.is_used(true)
            && !(self.shop_stays && self.shop_is_new)
            && self.default == (Range::Present { is_new: false, is_being_deleted: false })
            && !self.is_covered(true, None)
        {
            return Some("no range covers the new addresses");
        }
        if let Range::Present { is_new, is_being_deleted: true } = self.default
            && self.is_used(is_new)
            && !self.is_covered(is_new, None)
        {
            return Some("the default range is being deleted, and nothing else covers its addresses");
        }
        if self.swapped.iter().any(swapped) && self.flags.contains(&false) {
            return Some("default/kubernetes is swapped although an API server has the old flag");
        }
        if self.phase == Some(Phase::Switched) && self.swapped.iter().any(|one| one.old_alias != Held::Old) {
            return Some("an old address is not held after the switch");
        }
        if self.phase.is_none() && self.has_begun {
            let is_clean =
                self.swapped.iter().all(|one| [one.old_alias, one.new_alias] == [Held::Absent; 2] && !one.copies);
            // A range stays, without giving addresses away, as long as a Service has one.
            let stays = |range| matches!(range, Range::Present { is_being_deleted: false, .. });
            if !is_clean || self.trigger || stays(self.new) || stays(self.old) {
                return Some("something of the renumbering is left");
            }
            if self.pools_are_new != (self.swapped[0].service == Held::New) {
                return Some("the pools have addresses of a range that is gone");
            }
            let one_side = self.swapped.iter().all(|one| one.service == Held::New)
                || self.swapped.iter().all(|one| one.service == Held::Old);
            if !one_side {
                return Some("the renumbering has ended in its middle");
            }
        }
        None
    }
}

/// The number of states; or what is wrong in one that can be reached.
fn explore(next: Next, waits: bool) -> Result<usize, &'static str> {
    let mut known: HashMap<World, usize> = HashMap::new();
    let mut before: Vec<Vec<usize>> = Vec::new();
    let mut queue = VecDeque::new();
    let mut ends = Vec::new();
    let first = World::new();
    known.insert(first.clone(), 0);
    before.push(Vec::new());
    queue.push_back(first);
    while let Some(world) = queue.pop_front() {
        let at = known[&world];
        if let Some(wrong) = world.wrong() {
            return Err(wrong);
        }
        if world.has_begun && world.phase.is_none() {
            ends.push(at);
        }
        for after in world.following(next, waits) {
            let to = *known.entry(after.clone()).or_insert_with(|| {
                queue.push_back(after);
                before.push(Vec::new());
                before.len() - 1
            });
            before[to].push(at);
        }
    }
    // From every state, the end can be reached.
    let mut can_end: HashSet<usize> = ends.iter().copied().collect();
    while let Some(at) = ends.pop() {
        for earlier in &before[at] {
            if can_end.insert(*earlier) {
                ends.push(*earlier);
            }
        }
    }
    if can_end.len() == known.len() { Ok(known.len()) } else { Err("a renumbering can't end") }
}

#[test]
fn renumbering_ends_also_if_its_commands_are_killed_at_any_request() {
    let states = explore(step::next, true);
    assert!(states.is_ok_and(|states| states > 40_000), "{states:?}");
}

/// As if all API servers ran with the new flag.
fn with_new_flags(observed: &Observed) -> Observed {
    let mut observed = Observed { other_flags: Names::default(), ..observed.clone() };
    let range = ServiceCidr { cidrs: nets("10.100.0.0/24"), is_being_deleted: false, is_settled: true };
    observed.service_cidrs.insert(DEFAULT_SERVICE_CIDR.to_owned(), range);
    observed
}

#[test]
fn exploration_finds_faults() {
    struct Case {
        name: &'static str,
        next: Next,
        expected: &'static str,
    }
    let cases = [
        Case {
            name: "the endpoints are not copied before the swap",
            next: |goal, record, observed| {
                let mut observed = observed.clone();
                observed.swaps.iter_mut().for_each(|swap| swap.has_equal_copies = true);
                step::next(goal, record, &observed)
            },
            expected: "the old address of default/kubernetes has no endpoints",
        },
        Case {
            name: "the flags of the API servers are not compared",
            next: |goal, record, observed| step::next(goal, record, &with_new_flags(observed)),
            expected: "default/kubernetes is swapped although an API server has the old flag",
        },
        Case {
            name: "the flags are not compared again if the phase was stored by a command that was killed",
            next: |goal, record, observed| match record.phase {
                Phase::Switching => step::next(goal, record, &with_new_flags(observed)),
                _ => step::next(goal, record, observed),
            },
            expected: "default/kubernetes is swapped although an API server has the old flag",
        },
        Case {
            name: "the switch does not wait for the comparison",
            next: |goal, record, observed| {
                let mut observed = observed.clone();
                observed.service_cidrs.values_mut().for_each(|range| range.is_settled = true);
                step::next(goal, record, &observed)
            },
            expected: "default/kubernetes is swapped although an API server has the old flag",
        },
        Case {
            name: "the range of the old addresses is not added",
            next: |goal, record, observed| match step::next(goal, record, observed) {
                Step::CreateServiceCidr(OLD_SERVICE_CIDR, _) => {
                    Step::CreateServiceCidr(NEW_SERVICE_CIDR, nets("10.100.0.0/24"))
                }
                step => step,
            },
            expected: "a renumbering can't end",
        },
        Case {
            name: "the switch ends after the first swap",
            next: |goal, record, observed| {
                let mut observed = observed.clone();
                observed.swaps.truncate(1);
                step::next(goal, record, &observed)
            },
            expected: "an old address is not held after the switch",
        },
        Case {
            name: "the Service is released before an alias has its new addresses",
            next: |goal, record, observed| {
                let mut observed = observed.clone();
                let at_old = |swap: &&mut SwapState| swap.service == Held::Old;
                observed.swaps.iter_mut().filter(at_old).for_each(|swap| swap.new_alias = Held::New);
                step::next(goal, record, &observed)
            },
            expected: "the name of a Service points to no address",
        },
        Case {
            name: "the new addresses are free before the name points to the old ones",
            next: |goal, record, observed| match step::next(goal, record, observed) {
                Step::Send(mut requests) => {
                    requests.retain(|request| !matches!(request, Request::PointTo(_, Side::Old)));
                    Step::Send(requests)
                }
                step => step,
            },
            expected: "the name of a Service points to no address",
        },
        Case {
            name: "a Service that can't move back stops the rollback",
            next: |goal, record, observed| match (goal, record.phase) {
                (Goal::Rollback, Phase::RollingBack) if observed.has_moved && !observed.left_new.is_empty() => {
                    Step::Stop(String::new())
                }
                _ => step::next(goal, record, observed),
            },
            expected: "a renumbering can't end",
        },
        Case {
            name: "a Service that can't move back and looks temporary is left out",
            next: |goal, record, observed| {
                let observed = Observed { left_new: Names::default(), ..observed.clone() };
                step::next(goal, record, &observed)
            },
            expected: "a renumbering can't end",
        },
        Case {
            name: "a Service that can't move stops the finish",
            next: |goal, record, observed| match (goal, record.phase) {
                (Goal::Finish { .. }, Phase::Switched) if !observed.left_old.is_empty() => Step::Stop(String::new()),
                _ => step::next(goal, record, observed),
            },
            expected: "a renumbering can't end",
        },
        Case {
            name: "the finish leaves copies",
            next: |goal, record, observed| match step::next(goal, record, observed) {
                Step::Send(requests) if record.phase == Phase::Finishing => {
                    Step::Send(requests.into_iter().filter(|it| !matches!(it, Request::DeleteCopies(_))).collect())
                }
                step => step,
            },
            expected: "a renumbering can't end",
        },
        Case {
            name: "the finish deletes the record first",
            next: |goal, record, observed| match (goal, record.phase) {
                (Goal::Finish { .. }, Phase::Finishing) => Step::DeleteRecord(String::new()),
                _ => step::next(goal, record, observed),
            },
            expected: "something of the renumbering is left",
        },
        Case {
            name: "a rollback is possible in the middle of the switch",
            next: |goal, record, observed| match (goal, record.phase) {
                (Goal::Rollback, Phase::Switching) => Step::Enter(Phase::RollingBack),
                _ => step::next(goal, record, observed),
            },
            expected: "default/kubernetes is swapped although an API server has the old flag",
        },
    ];
    for Case { name, next, expected } in cases {
        assert_eq!(explore(next, true), Err(expected), "{name}");
    }
}

#[test]
fn exploration_finds_requests_that_arrive_after_the_next_command_has_begun() {
    assert_eq!(explore(step::next, false), Err("something of the renumbering is left"));
}
