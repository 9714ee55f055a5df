//! An agent: passes events to its `HeartbeatState` and `AgentState`, sends their requests, and applies their plans to
//! the network of its node.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clusterip_failover::heartbeat_state::{self, NextAction};
use clusterip_failover::state::{ObservedState, WriteKind, WriteOutcome};
use clusterip_failover::timing::{KERNEL_DELAY, MAX_FAILURES, RETRY_PAUSE};

use super::api_server::{Answer, Request};
use super::faults::Fault;
use super::{Event, Happening, NODES, World, clock, millis};

impl World {
    pub(super) fn take(&mut self, agent: usize, event: Event) {
        let now = self.clock(agent);
        match event {
            Event::Renew => self.renew(agent),
            Event::Answered(None, answer) => {
                let it = &mut self.agents[agent];
                let sent = it.renewal.take().map_or(0, |(_, sent)| sent);
                let sent = self.base + Duration::from_millis(sent);
                match answer {
                    Answer::Found(lease) => it.heartbeat_state.read(lease.map(|lease| *lease), now),
                    Answer::Written(lease) => {
                        it.heartbeat_state.wrote(*lease, sent, now);
                        if it.heartbeat_state.until().is_some() {
                            let failover = self.failovers[agent];
                            let jitter = self.chance.u64(..millis(failover.jitter()));
                            return self.renew_after(agent, millis(failover.heartbeat().retry) - jitter);
                        }
                    }
                    Answer::Gone | Answer::Conflict => {}
                }
                self.renew(agent);
            }
            Event::NoAnswer(None) => {
                let it = &mut self.agents[agent];
                it.renewal = None;
                it.heartbeat_state.forget();
                self.renew_after(agent, millis(self.failovers[agent].retry_pause()));
            }
            Event::Answered(Some(write), answer) => {
                let outcome = match answer {
                    Answer::Written(lease) => WriteOutcome::Written(lease),
                    Answer::Gone => WriteOutcome::Gone,
                    Answer::Found(_) | Answer::Conflict => WriteOutcome::Changed,
                };
                self.agents[agent].state.written(&write, outcome, now);
            }
            Event::NoAnswer(Some(write)) => self.agents[agent].state.written(&write, WriteOutcome::Unclear, now),
            Event::Replan => {}
            Event::Reconcile => self.reconcile(agent),
        }
    }

    fn renew_after(&mut self, agent: usize, after: u64) {
        let who = self.who(agent, 0);
        self.at(self.now + after, Happening::To(who, Box::new(Event::Renew)));
    }

    fn renew(&mut self, agent: usize) {
        let now = self.clock(agent);
        let sent = millis(now.saturating_duration_since(self.base));
        let it = &mut self.agents[agent];
        let request = match it.heartbeat_state.next(now, clock(now, self.base)) {
            NextAction::Wait => {
                it.heartbeat_state.forget();
                return self.renew_after(agent, millis(self.failovers[agent].retry_pause()));
            }
            NextAction::Read => Request::Read(heartbeat_state::name(NODES[agent])),
            NextAction::Write(lease) => {
                it.heartbeat_state.forget();
                Request::Write(lease)
            }
        };
        let number = self.send(agent, None, request);
        self.agents[agent].renewal = Some((number, sent));
    }

    pub(super) fn plan(&mut self, agent: usize) {
        let (now, base) = (self.clock(agent), self.base);
        let assignments = Arc::clone(&self.assignments);
        let it = &mut self.agents[agent];
        if !it.alive || it.has(Fault::Pause) {
            return;
        }
        it.state.assignments = assignments;
        it.state.set_term(it.heartbeat_state.term(now));
        it.state.observed = it.observed.clone();
        let plan = it.state.plan(now, clock(now, base));
        let other = plan.desired != it.desired;
        it.desired = plan.desired;
        let who = self.who(agent, 0);
        if other {
            let delay = self.chance.u64(..50);
            self.at(self.now + delay, Happening::To(who, Box::new(Event::Reconcile)));
        }
        if let Some(at) = plan.replan_at {
            let at = self.true_time(agent, at);
            self.at(at, Happening::To(who, Box::new(Event::Replan)));
        }
        for write in plan.writes {
            let lease = write.lease.clone();
            let request = if write.kind == WriteKind::Remove { Request::Remove(lease) } else { Request::Write(lease) };
            let number = self.send(agent, Some(write), request);
            self.agents[agent].writing.insert(number);
        }
    }

    /// Applies the plan to the network: a removal takes time, an addition does not.
    fn reconcile(&mut self, agent: usize) {
        let now = self.clock(agent);
        let it = &self.agents[agent];
        if it.reconciling {
            return;
        }
        let desired = it.desired.clone();
        let lasts = |address: &IpAddr| desired.held.get(address).is_some_and(|hold| now < hold.until);
        let going: Vec<IpAddr> = self.kernels[agent].keys().filter(|address| !lasts(address)).copied().collect();
        if !going.is_empty() {
            self.agents[agent].reconciling = true;
            let (who, delay) = (self.who(agent, 0), self.chance.u64(..300));
            return self.at(self.now + delay, Happening::Off(who, going));
        }
        self.agents[agent].failures.retain(|address, _| lasts(address));
        for (address, hold) in desired.held.iter().filter(|(address, _)| lasts(address)) {
            if self.agents[agent].has(Fault::Broken) || self.unholdable.contains(address) {
                self.fail(agent, *address);
                continue;
            }
            self.agents[agent].failures.remove(address);
            let until = self.true_time(agent, hold.until);
            for (other, kernel) in self.kernels.iter().enumerate() {
                if let Some(theirs) = kernel.get(address).filter(|theirs| other != agent && self.now < **theirs) {
                    let (here, there) = (NODES[agent], NODES[other]);
                    let now = self.now;
                    self.violations.push(format!("{now} ms: {address} on {here} and until {theirs} ms on {there}"));
                }
            }
            self.kernels[agent].insert(*address, until + millis(KERNEL_DELAY));
        }
        let failures = &self.agents[agent].failures;
        let observed = ObservedState {
            number: desired.number,
            addresses: self.kernels[agent].keys().chain(failures.keys()).copied().collect(),
            failing: failures
                .iter()
                .filter(|(_, (count, _))| *count >= MAX_FAILURES)
                .map(|(address, _)| *address)
                .collect(),
        };
        if observed != self.agents[agent].observed {
            self.agents[agent].observed = observed;
            let who = self.who(agent, 0);
            self.at(self.now, Happening::To(who, Box::new(Event::Replan)));
        }
    }

    /// Counts a failure to hold an address; the address is tried again after a pause.
    fn fail(&mut self, agent: usize, address: IpAddr) {
        let now = self.now;
        let who = self.who(agent, 0);
        let (count, again) = self.agents[agent].failures.entry(address).or_insert((0, now));
        if now >= *again {
            *count += 1;
            *again = now + millis(RETRY_PAUSE);
            let again = *again;
            self.at(again, Happening::To(who, Box::new(Event::Reconcile)));
        }
    }
}
