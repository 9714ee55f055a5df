//! Searches all states breadth first, and follows each to its end.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use clusterip_moves::journal::{Journal, Plan};
use clusterip_moves::outcome::Refusal;
use clusterip_moves::seamless::{Moment, Progress, Request, SeamlessStep, Verb, Wait, request};
use clusterip_moves::step::{self, Step, Without};
use clusterip_moves::temporary::Role;
use serde_json::Value;

use super::api_server::{OLD, SERVICE, place_of};
use super::faults::{Fault, decide};
use super::kube_proxy::{LONG, NAME_RESOLVES};
use super::world::{Hashed, Runner, World, hash_of, journal};

/// How often something may go wrong.
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// Crashes, and requests without an answer.
    pub failures: u8,
    /// Acts of other writers.
    pub others: u8,
    /// Leaders that take over while the first run goes on.
    pub leaders: u8,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivery {
    Answered,
    /// It is carried out, and the answer is lost.
    AnswerLost,
    /// The client gives up, and it may still be carried out later.
    Late,
}

pub(super) struct Model {
    fault: Option<Fault>,
    journal: &'static Journal,
    pub(super) plan: &'static Plan,
}

impl Model {
    fn new(fault: Option<Fault>) -> Self {
        let (journal, plan) = journal();
        Self { fault, journal, plan }
    }

    /// The addresses that a run tries next.
    fn target(&self, run: &Runner) -> Vec<IpAddr> {
        match run.target {
            0 => self.journal.to.clone(),
            1 => self.journal.from.clone(),
            _ => Vec::new(),
        }
    }

    fn next(&self, world: &World, nth: usize) -> Option<SeamlessStep> {
        let run = world.runs[nth].as_ref()?;
        let moment = Moment {
            now: world.now(),
            since_write: if run.has_waited { LONG } else { Duration::ZERO },
            endpoints_match: world.endpoints_match(run.seen[OLD].as_deref()),
            is_late: world.clock > 0,
            requests_ended: run.saw_requests_ended,
        };
        let seen = run.observed(self.journal);
        Some(decide(self.fault, &seen, self.journal, &run.progress, &moment, &self.target(run)))
    }

    fn later_run(&self) -> Runner {
        Runner::new(match self.fault {
            Some(Fault::LaterRunCreates) => Progress::of_first_run(),
            _ => Progress::default(),
        })
    }

    /// Carries out the next step of a run, `step` if it is known. Returns the name of the step if it writes.
    fn act(
        &self,
        world: &mut World,
        nth: usize,
        delivery: Delivery,
        step: Option<SeamlessStep>,
    ) -> Option<&'static str> {
        let objects = world.read();
        let requests_ended = world.late.is_none() && (nth == 0 || world.runs[0].is_none());
        let run = world.runs[nth].as_mut()?;
        if run.is_stale {
            (run.seen, run.is_stale, run.saw_requests_ended) = (objects, false, requests_ended);
            return None;
        }
        // Another run may have changed the objects meanwhile.
        let knows_all = run.seen == objects;
        let mut step = match step {
            Some(step) => step,
            None => self.next(world, nth)?,
        };
        if step == SeamlessStep::End {
            let run = world.runs[nth].as_mut()?;
            // The executor reads the objects once more before it deletes the record.
            run.seen = objects;
            step = self.next(world, nth)?;
        }
        let now = world.now();
        if knows_all && !world.name_resolves() && !resolves(&step) && world.is_undisturbed() {
            world.breaks(NAME_RESOLVES);
        }
        let run = world.runs[nth].as_mut()?;
        match &step {
            SeamlessStep::Wait(wait @ (Wait::For(_) | Wait::Endpoints)) => {
                run.is_stale = true;
                match wait {
                    Wait::For(time) => {
                        run.has_waited = true;
                        world.pass(*time);
                    }
                    _ => world.write_endpoints(),
                }
                return None;
            }
            SeamlessStep::Wait(_) => {
                world.runs[nth] = None;
                world.pass(LONG);
                return None;
            }
            SeamlessStep::End => {
                world.runs[nth] = None;
                world.end();
                world.pass(LONG);
                return Some(step.name());
            }
            SeamlessStep::GiveUp(_) => {
                run.progress.fail("foreign".to_owned());
                return None;
            }
            _ => {}
        }
        let seen = run.observed(self.journal);
        if step == SeamlessStep::Original(Step::RestoreStatus) {
            // The executor looks at the other Services right before it writes.
            if self.fault == Some(Fault::StatusNotCompared) || !world.shown_is_given {
                let answer = match delivery {
                    Delivery::Late => Err(Refusal::Trouble("no answer".to_owned())),
                    _ => world.write_status(step::with_status(seen.service.as_ref()?, self.journal)),
                };
                self.note_answer(world, nth, &step, &answer);
                if delivery != Delivery::Answered {
                    world.fail();
                }
                return Some(step.name());
            }
            step = SeamlessStep::Original(Step::Cleanup);
        }
        let sent = match &step {
            SeamlessStep::Original(original) => self.original(*original, seen.service.as_ref()?, run),
            step => request(step, &seen, self.journal, now),
        };
        let sent = sent?;
        let answer = match delivery {
            Delivery::Late => {
                if step == SeamlessStep::Release {
                    world.interrupt();
                }
                world.late = Some(Hashed::new(&format!("{sent:?}"), sent));
                Err(Refusal::Trouble("no answer".to_owned()))
            }
            _ => world.carry_out(&sent, self.fault != Some(Fault::NoPreconditions)),
        };
        let answer =
            if delivery == Delivery::AnswerLost { Err(Refusal::Trouble("no answer".to_owned())) } else { answer };
        self.note_answer(world, nth, &step, &answer);
        if delivery != Delivery::Answered {
            world.fail();
        }
        Some(step.name())
    }

    /// Notes the answer to the request of a step in the run, as the executor does.
    fn note_answer(&self, world: &mut World, nth: usize, step: &SeamlessStep, answer: &Result<(), Refusal>) {
        let is_held_by_temporary = |target: &[IpAddr]| {
            [Role::New, Role::Old].iter().any(|role| world.temporary(*role, self.journal).has_any(target))
        };
        let is_held = world.runs[nth].as_ref().is_some_and(|run| is_held_by_temporary(&self.target(run)));
        let at = written(step);
        let stored = world.objects[at].clone();
        let Some(run) = world.runs[nth].as_mut() else { return };
        match (step, answer) {
            (SeamlessStep::Original(Step::Assign), Err(Refusal::Address { .. } | Refusal::Refused(_))) => {
                // A temporary Service that was created late is deleted before the next address is tried.
                if !is_held {
                    run.target = (run.target + 1).min(2);
                }
            }
            (SeamlessStep::Original(_), _) => {}
            (step, answer) => drop(run.progress.answered(step, answer.as_ref().map(drop))),
        }
        match answer {
            // Only the object that was written is up to date.
            Ok(()) => {
                run.seen[at] = stored;
                run.has_waited = false;
            }
            Err(_) => run.is_stale = true,
        }
    }

    fn original(&self, step: Step, service: &Value, run: &Runner) -> Option<Request> {
        let body = match step {
            Step::Assign => step::assigned(service, self.journal, &self.target(run), &Without::default()),
            Step::Cleanup => step::cleaned_up(service, self.journal, false),
            Step::RestoreStatus | Step::Idle => return None,
        };
        let (namespace, name) = (self.journal.namespace.clone(), self.journal.name.clone());
        Some(Request { verb: Verb::Replace, namespace, name, body })
    }

    /// All states that may follow.
    fn following(&self, world: &World) -> Vec<(String, World)> {
        let mut all = Vec::new();
        let mut add = |what: String, act: &dyn Fn(&mut World)| {
            let mut next = world.clone();
            act(&mut next);
            all.push((what, next));
        };
        for nth in 0..2 {
            let Some(run) = &world.runs[nth] else { continue };
            let next = if run.is_stale { None } else { self.next(world, nth) };
            let step = next.as_ref().map_or("read", SeamlessStep::name);
            add(format!("run {nth}: {step}"), &|world| {
                let _ = self.act(world, nth, Delivery::Answered, next.clone());
            });
            if world.failures == 0 {
                continue;
            }
            add(format!("run {nth}: crash"), &|world| {
                world.failures -= 1;
                world.runs[nth] = None;
                world.fail();
            });
            let writes = next.as_ref().is_some_and(is_write);
            if writes {
                add(format!("run {nth}: {step}, answer lost"), &|world| {
                    world.failures -= 1;
                    let _ = self.act(world, nth, Delivery::AnswerLost, next.clone());
                });
            }
            if writes && world.late.is_none() {
                add(format!("run {nth}: {step}, late"), &|world| {
                    world.failures -= 1;
                    let _ = self.act(world, nth, Delivery::Late, next.clone());
                });
            }
        }
        if world.late.is_some() {
            add("the late request arrives".to_owned(), &|world| self.deliver_late(world));
            add("the late request is lost".to_owned(), &|world| world.late = None);
        }
        if world.is_recorded && world.runs[1].is_none() && world.leaders > 0 {
            add("another leader takes over".to_owned(), &|world| {
                world.leaders -= 1;
                world.runs[1] = Some(self.later_run());
            });
        }
        if world.clock < 2 {
            add("time passes".to_owned(), &|world| {
                world.clock += 1;
                world.fail();
            });
        }
        if world.others > 0 {
            self.acts_of_others(world, &mut add);
        }
        all
    }

    fn deliver_late(&self, world: &mut World) {
        if let Some(late) = world.late.take() {
            world.touched.late = true;
            world.interrupt();
            let _ = world.carry_out(&late, self.fault != Some(Fault::NoPreconditions));
        }
    }

    /// One step of a fair run: nothing goes wrong any more. `None` at the end.
    fn fair(&self, world: &mut World) -> Option<&'static str> {
        self.deliver_late(world);
        for nth in 0..2 {
            if world.runs[nth].is_some() {
                return Some(self.act(world, nth, Delivery::Answered, None).unwrap_or_default());
            }
        }
        if !world.is_recorded {
            return None;
        }
        (world.clock, world.is_unreadable) = (2, false);
        world.runs[1] = Some(self.later_run());
        Some("")
    }
}

fn is_write(step: &SeamlessStep) -> bool {
    !matches!(step, SeamlessStep::Wait(_) | SeamlessStep::End | SeamlessStep::GiveUp(_))
}

/// Whether a step gives the name of the Service an address, or removes what is in the way.
fn resolves(step: &SeamlessStep) -> bool {
    matches!(step, SeamlessStep::Original(Step::Assign) | SeamlessStep::Delete(Role::New | Role::Old))
}

/// The place of the object that a step writes.
fn written(step: &SeamlessStep) -> usize {
    match step {
        SeamlessStep::Create(role) | SeamlessStep::Delete(role) => place_of(*role),
        SeamlessStep::ReleaseOld | SeamlessStep::TakeOld | SeamlessStep::TryOld | SeamlessStep::BeginGrace => OLD,
        _ => SERVICE,
    }
}

/// The longest way from any state to the end of the move.
const MAX_STEPS: usize = 200;

/// Explores all states. Returns their number.
///
/// # Errors
/// The first violation, with the way to it.
pub fn explore(fault: Option<Fault>, budgets: Budgets) -> Result<usize, String> {
    let model = Model::new(fault);
    let start = World::start(budgets.failures, budgets.others, budgets.leaders);
    let (mut known, mut ending) = (HashSet::from([hash_of(&start)]), HashSet::new());
    // The way to each state: the index of the state before, and what happened.
    let mut ways: Vec<(usize, String)> = vec![(0, "the move is recorded".to_owned())];
    let mut queue = VecDeque::from([(0, start)]);
    while let Some((at, world)) = queue.pop_front() {
        let fail = |why: String| Err(format!("{why}\n{}", way(&ways, at)));
        if let Some(promise) = world.violation {
            return fail(promise.to_owned());
        }
        let (mut end, mut passed, mut passed_states) = (world.clone(), Vec::new(), HashSet::new());
        loop {
            let state = hash_of(&end);
            let is_known = !ending.insert(state);
            if !passed_states.insert(state) || passed.len() > MAX_STEPS {
                return fail(format!("the move does not end: {passed:?}"));
            }
            if is_known {
                break;
            }
            match model.fair(&mut end) {
                Some(step) => passed.push(step),
                None => {
                    if let Err(why) = end.check_end() {
                        return fail(format!("{why} after {passed:?}"));
                    }
                    break;
                }
            }
            if let Some(promise) = end.violation {
                return fail(format!("{promise} after {passed:?}"));
            }
        }
        for (what, next) in model.following(&world) {
            if known.insert(hash_of(&next)) {
                ways.push((at, what));
                queue.push_back((ways.len() - 1, next));
            }
        }
    }
    Ok(known.len())
}

fn way(ways: &[(usize, String)], mut at: usize) -> String {
    let mut steps = Vec::new();
    while at > 0 {
        steps.push(ways[at].1.as_str());
        at = ways[at].0;
    }
    steps.reverse();
    steps.join("\n")
}

/// The writes of a move that nothing disturbs.
pub fn undisturbed() -> Vec<&'static str> {
    let model = Model::new(None);
    let mut world = World::start(0, 0, 0);
    let mut writes = Vec::new();
    for _ in 0..MAX_STEPS {
        match model.fair(&mut world) {
            Some("") => {}
            Some(step) => writes.push(step),
            None => break,
        }
        // DNS may answer at any time, and a cache keeps the answer that a name has no address.
        assert!(world.name_resolves(), "{writes:?}");
    }
    writes
}
