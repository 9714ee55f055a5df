//! Several agents and an API server in simulated time. Whatever is late, lost, cut off, paused or killed, no two
//! agents ever hold the same address.
//!
//! `HeartbeatState` and `AgentState` are the real ones. Everything around them is a model: an API server that knows
//! versions, requests that are slow or are lost before or after they were carried out, watches that lag, networks
//! that release slowly, kernels in which addresses expire by themselves, and clocks that run at different speeds. The
//! check for violations looks at the kernels alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use clusterip_failover::assignments::{Assignment, Assignments};
use clusterip_failover::claims::HolderClaim;
use clusterip_failover::heartbeat_state::HeartbeatState;
use clusterip_failover::leases::{Identity, Role};
use clusterip_failover::state::{AgentState, DesiredState, LeaseWrite, ObservedState};
use clusterip_failover::timing::Failover;
use fastrand::Rng;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

mod agent;
mod api_server;
mod checks;
mod faults;
mod network;

use self::api_server::{Answer, Request, Store};
use self::faults::Fault;

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
const ADDRESSES: u32 = 6;

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[derive(Clone, Debug)]
enum Happening {
    Begin(usize, Fault),
    End(usize, Fault),
    /// A request arrives at the API server.
    Arrives(Who, Box<(Option<LeaseWrite>, Request)>),
    /// The watch of an agent delivers all events so far.
    Delivered(usize),
    /// An event for an agent, which may be paused.
    To(Who, Box<Event>),
    /// Addresses were removed from the network of a node.
    Off(Who, Vec<IpAddr>),
}

/// Identifies one process of an agent, and one of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Who {
    agent: usize,
    process: u64,
    request: u64,
}

#[derive(Clone, Debug)]
enum Event {
    Answered(Option<LeaseWrite>, Answer),
    NoAnswer(Option<LeaseWrite>),
    Renew,
    Replan,
    Reconcile,
}

struct Agent {
    process: u64,
    alive: bool,
    /// The faults that last now.
    faults: Vec<Fault>,
    /// How often each address could not be held, and when that is tried again.
    failures: BTreeMap<IpAddr, (u32, u64)>,
    heartbeat_state: HeartbeatState,
    state: AgentState,
    /// The number of events of the store's log that the watch has delivered.
    delivered: usize,
    listed: bool,
    requests: u64,
    /// The number of the heartbeat request in flight, and when it was sent.
    renewal: Option<(u64, u64)>,
    /// The numbers of the requests that write a Lease and are in flight.
    writing: BTreeSet<u64>,
    waiting: Vec<Event>,
    desired: DesiredState,
    observed: ObservedState,
    reconciling: bool,
    /// How fast the agent's clock runs, in thousandths above the true time.
    drift: i64,
}

impl Agent {
    /// A process that has not started yet.
    fn new(node: &'static str, failover: Failover, process: u64, now: Instant, drift: i64) -> Self {
        Self {
            process,
            alive: false,
            faults: Vec::new(),
            failures: BTreeMap::new(),
            heartbeat_state: HeartbeatState::new(node, failover, identities(node, process)),
            state: AgentState::new(node, now),
            delivered: 0,
            listed: false,
            requests: 0,
            renewal: None,
            writing: BTreeSet::new(),
            waiting: Vec::new(),
            desired: DesiredState::default(),
            observed: ObservedState::default(),
            reconciling: false,
            drift,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }
}

struct World {
    base: Instant,
    now: u64,
    /// What happens next, by its time, and in the order in which it was scheduled.
    queue: BTreeMap<(u64, u64), Happening>,
    number: u64,
    chance: Rng,
    store: Store,
    agents: Vec<Agent>,
    /// Those of the processes that start from now on.
    failovers: [Failover; NODES.len()],
    /// What the network of each node holds, and until when, in true time.
    kernels: Vec<BTreeMap<IpAddr, u64>>,
    assignments: Arc<Assignments>,
    /// The addresses that no node can hold.
    unholdable: BTreeSet<IpAddr>,
    violations: Vec<String>,
    calm: bool,
}

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0900 + number).into()
}

/// Returns the identities of one process of the agent on a node.
fn identities(node: &'static str, process: u64) -> impl FnMut() -> Identity + Send + 'static {
    let mut number = process << 32;
    move || {
        number += 1;
        Identity::with(node, Role::Agent, number)
    }
}

impl World {
    fn new(seed: u64, calm: bool, failovers: [Failover; NODES.len()]) -> Self {
        let base = Instant::now();
        let nodes: BTreeSet<String> = NODES.map(str::to_owned).into();
        let assignment = Assignment { nodes: Arc::new(nodes), ..Assignment::default() };
        let mut world = Self {
            base,
            now: 0,
            queue: BTreeMap::new(),
            number: 0,
            chance: Rng::with_seed(seed),
            store: Store::default(),
            agents: Vec::new(),
            failovers,
            kernels: vec![BTreeMap::new(); NODES.len()],
            assignments: Arc::new((0..ADDRESSES).map(|number| (address(number), assignment.clone())).collect()),
            unholdable: BTreeSet::new(),
            violations: Vec::new(),
            calm,
        };
        for (node, failover) in NODES.into_iter().zip(failovers) {
            let drift = world.chance.i64(-20..=20);
            world.agents.push(Agent::new(node, failover, 0, base, drift));
        }
        for agent in 0..NODES.len() {
            world.start(agent);
        }
        world
    }

    /// The current time by the clock of this agent.
    fn clock(&self, agent: usize) -> Instant {
        let drifted = i128::from(self.now) * (1000 + i128::from(self.agents[agent].drift)) / 1000;
        self.base + Duration::from_millis(u64::try_from(drifted).unwrap_or_default())
    }

    /// The true time at which the clock of this agent shows `at`, never earlier.
    fn true_time(&self, agent: usize, at: Instant) -> u64 {
        let shown = i128::from(millis(at.saturating_duration_since(self.base)));
        let true_time = shown * 1000 / (1000 + i128::from(self.agents[agent].drift));
        u64::try_from(true_time).unwrap_or_default() + 1
    }

    fn at(&mut self, at: u64, happening: Happening) {
        self.number += 1;
        self.queue.insert((at.max(self.now), self.number), happening);
    }

    fn who(&self, agent: usize, request: u64) -> Who {
        Who { agent, process: self.agents[agent].process, request }
    }

    fn start(&mut self, agent: usize) {
        let now = self.clock(agent);
        let delivered = self.store.log.len();
        let failover = self.failovers[agent];
        let before = &mut self.agents[agent];
        let (faults, drift) = (std::mem::take(&mut before.faults), before.drift);
        let fresh = Agent::new(NODES[agent], failover, before.process + 1, now, drift);
        *before = Agent { alive: true, faults, delivered, ..fresh };
        // An agent that starts removes the addresses that an earlier process has left.
        self.kernels[agent].clear();
        let who = self.who(agent, 0);
        self.at(self.now, Happening::To(who, Box::new(Event::Renew)));
        self.deliver(agent);
    }

    fn run(&mut self, until: u64) {
        while let Some(next) = self.queue.first_entry().filter(|next| next.key().0 <= until) {
            let ((at, _), happening) = next.remove_entry();
            self.now = at;
            self.happen(happening);
        }
        self.now = until;
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Begin(agent, fault) => self.begin(agent, fault),
            Happening::End(agent, fault) => self.end(agent, fault),
            Happening::Arrives(who, what) => {
                let (write, request) = *what;
                let before = self.store.log.len();
                let answer = self.store.carry_out(request);
                if self.store.log.len() > before {
                    for agent in 0..NODES.len() {
                        self.deliver(agent);
                    }
                }
                let delay = self.delay(who.agent);
                if !self.is_lost(who.agent) {
                    self.at(self.now + delay, Happening::To(who, Box::new(Event::Answered(write, answer))));
                }
            }
            Happening::Delivered(agent) => {
                let log = self.store.log.len();
                let now = self.clock(agent);
                let it = &mut self.agents[agent];
                if !it.alive || [Fault::Cut, Fault::Deaf, Fault::Pause].into_iter().any(|fault| it.has(fault)) {
                    return;
                }
                if it.listed {
                    for (lease, deleted) in &self.store.log[it.delivered..log] {
                        if *deleted { it.state.delete(lease, now) } else { it.state.apply(lease, now) }
                    }
                } else {
                    let all: Vec<Lease> = self.store.leases.values().cloned().collect();
                    it.state.replace_all(&all, now);
                    it.listed = true;
                }
                it.delivered = log;
                self.plan(agent);
            }
            Happening::To(who, event) => {
                let it = &mut self.agents[who.agent];
                if !it.alive || it.process != who.process {
                    return;
                }
                // An answered request no longer times out, and an answer after the timeout is dropped.
                let is_heartbeat = it.renewal.is_some_and(|(number, _)| number == who.request);
                if matches!(*event, Event::Answered(..) | Event::NoAnswer(_))
                    && !is_heartbeat
                    && !it.writing.remove(&who.request)
                {
                    return;
                }
                if it.has(Fault::Pause) {
                    it.waiting.push(*event);
                } else {
                    self.take(who.agent, *event);
                    self.plan(who.agent);
                }
            }
            Happening::Off(who, addresses) => {
                let it = &self.agents[who.agent];
                if it.process != who.process || !it.alive {
                    return;
                }
                if it.has(Fault::Pause) {
                    return self.at(self.now + 100, Happening::Off(who, addresses));
                }
                for address in &addresses {
                    self.kernels[who.agent].remove(address);
                }
                let it = &mut self.agents[who.agent];
                it.reconciling = false;
                self.at(self.now, Happening::To(who, Box::new(Event::Reconcile)));
            }
        }
    }

    /// The number of times that each claim was written.
    fn written(&self) -> BTreeMap<String, usize> {
        let mut written = BTreeMap::new();
        for claim in self.store.log.iter().filter_map(|(lease, _)| HolderClaim::of(lease)) {
            *written.entry(claim.address.to_string()).or_default() += 1;
        }
        written
    }

    /// The addresses that no node holds.
    fn missing(&self) -> Vec<IpAddr> {
        let held = |address: &IpAddr| {
            self.kernels.iter().any(|kernel| kernel.get(address).is_some_and(|until| self.now < *until))
        };
        self.assignments.keys().filter(|address| !held(address)).copied().collect()
    }
}

fn clock(now: Instant, base: Instant) -> Timestamp {
    let elapsed = i64::try_from(millis(now.saturating_duration_since(base))).unwrap_or_default();
    Timestamp::from_millisecond(elapsed).unwrap_or(Timestamp::UNIX_EPOCH)
}
