//! Agents that hold external addresses on a fake network, several in one process, with a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use clusterip::agent::assignments::{Assignment, Assignments, Protocol};
use clusterip::agent::event_loop::Agent;
use clusterip::agent::external_claims::{Claim, name};
use clusterip::agent::health::Health;
use clusterip::agent::heartbeat_state;
use clusterip::cluster::service_key::ServiceKey;
use clusterip::metrics::Metrics;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{PATIENCE, eventually, eventually_within};
use crate::support::fake_network::{Change, Event, FakeNetwork};
use crate::support::fault_proxy::Proxy;
use crate::support::stalling_connection::StallingConnection;

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// The maximum time until another agent holds the addresses of an agent that died.
const TAKEOVER: Duration = Duration::from_secs(25);

fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0900 + number).into()
}

fn assigned(count: u32, nodes: &[&str]) -> Assignments {
    let assignment = Assignment {
        service: ServiceKey::new("shop", "web"),
        ports: [(Protocol::Tcp, 443)].into(),
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
    };
    (0..count).map(|number| (address(number), assignment.clone())).collect()
}

/// Suspends the work of an agent, as SIGSTOP suspends a process.
#[derive(Clone, Default)]
struct Pause(Arc<Mutex<(bool, Option<Waker>)>>);

impl Pause {
    fn suspend(&self) {
        self.0.lock().unwrap().0 = true;
    }

    fn resume(&self) {
        let mut state = self.0.lock().unwrap();
        state.0 = false;
        state.1.take().unwrap().wake();
    }

    async fn of(self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        std::future::poll_fn(|context| {
            let mut state = self.0.lock().unwrap();
            if state.0 {
                state.1 = Some(context.waker().clone());
                return Poll::Pending;
            }
            drop(state);
            work.as_mut().poll(context)
        })
        .await;
    }
}

struct Running {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    pause: Pause,
    health: watch::Receiver<Health>,
}

impl Running {
    /// Ends the agent at once, as SIGKILL does.
    fn kill(self) {
        self.task.abort();
    }

    /// Ends the agent in an orderly way, as SIGTERM does.
    async fn stop(self) {
        let _ = self.stop.send(());
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

/// The agents of a cluster and their fake network.
struct Agents {
    leases: Api<Lease>,
    namespace: String,
    network: FakeNetwork,
    assignments: watch::Sender<Arc<Assignments>>,
    running: BTreeMap<String, Running>,
}

impl Agents {
    async fn new(plane: &ControlPlane, name: &str, assignments: Assignments) -> Self {
        let namespace = plane.namespace(name).await;
        Self {
            leases: Api::namespaced(plane.client(), &namespace),
            namespace,
            network: FakeNetwork::default(),
            assignments: watch::Sender::new(Arc::new(assignments)),
            running: BTreeMap::new(),
        }
    }

    fn start(&mut self, node: &str, client: impl Fn() -> Client) {
        let agent = Agent {
            client: client(),
            heartbeat: client(),
            namespace: self.namespace.clone(),
            node: node.to_owned(),
            assignments: self.assignments.subscribe(),
            network: self.network.node(node),
            metrics: Arc::new(Metrics::of_agent()),
        };
        let (stop, stopped) = oneshot::channel();
        let (health, seen) = watch::channel(Health::new());
        let pause = Pause::default();
        let work = agent.run(health, async { stopped.await.unwrap() });
        let task = tokio::spawn(pause.clone().of(work));
        self.running.insert(node.to_owned(), Running { task, stop, pause, health: seen });
    }

    fn take(&mut self, node: &str) -> Running {
        self.running.remove(node).unwrap()
    }

    fn assign(&self, change: impl FnOnce(&mut Assignments)) {
        self.assignments.send_modify(|all| change(Arc::make_mut(all)));
    }

    /// Waits until these nodes hold all assigned addresses, in the network and in the claims.
    async fn held_by(&self, within: Duration, nodes: &[&str]) -> BTreeMap<IpAddr, String> {
        let all: BTreeSet<IpAddr> = self.assignments.borrow().keys().copied().collect();
        let what = format!("{} addresses on {nodes:?}", all.len());
        let held = eventually_within(within, &what, async || {
            let held = self.network.holders();
            let good = held.keys().copied().collect::<BTreeSet<_>>() == all
                && held.values().all(|node| nodes.contains(&node.as_str()));
            good.then_some(held)
        });
        let held = held.await;
        self.network.assert_no_conflicts();
        assert_eq!(self.claims().await, held, "the claims differ from the network");
        for (node, running) in &self.running {
            let mine = held.iter().filter(|(_, holder)| *holder == node).map(|(address, _)| *address);
            let mine: BTreeSet<IpAddr> = mine.collect();
            let mut health = running.health.clone();
            let told = tokio::time::timeout(PATIENCE, health.wait_for(|health| health.holding == mine)).await;
            told.unwrap_or_else(|_| panic!("{node} does not report its addresses")).unwrap();
        }
        held
    }

    async fn all(&self) -> Vec<Lease> {
        self.leases.list(&ListParams::default()).await.unwrap().items
    }

    async fn claims(&self) -> BTreeMap<IpAddr, String> {
        let claims = self.all().await.iter().filter_map(Claim::of).collect::<Vec<_>>();
        claims.iter().filter_map(|claim| Some((claim.address, claim.node()?.to_owned()))).collect()
    }

    /// The resource versions of all claims, which change if a claim is written.
    async fn versions(&self) -> BTreeMap<String, Option<String>> {
        let claims = self.all().await.into_iter().filter(|lease| Claim::of(lease).is_some());
        claims.map(|lease| (lease.name_any(), lease.resource_version())).collect()
    }

    async fn holder_of_heartbeat(&self, node: &str) -> String {
        let lease = self.leases.get(&heartbeat_state::name(node)).await.unwrap();
        lease.spec.unwrap().holder_identity.unwrap()
    }
}

fn loads(held: &BTreeMap<IpAddr, String>) -> BTreeMap<&str, usize> {
    held.values().fold(BTreeMap::new(), |mut loads, node| {
        *loads.entry(node.as_str()).or_default() += 1;
        loads
    })
}

fn of<'a>(held: &BTreeMap<IpAddr, String>, node: &'a str) -> BTreeMap<IpAddr, &'a str> {
    held.iter().filter(|(_, holder)| *holder == node).map(|(address, _)| (*address, node)).collect()
}

/// The events without announcements, which are repeated.
fn without_announcements(log: Vec<Event>) -> Vec<Event> {
    log.into_iter().filter(|event| event.change != Change::Announced).collect()
}

/// Checks that the loads of the nodes differ from the mean by 20 % at most.
#[track_caller]
fn even(held: &BTreeMap<IpAddr, String>, nodes: usize) {
    let (loads, share) = (loads(held), held.len() as f64 / nodes as f64);
    assert_eq!(loads.len(), nodes, "{loads:?}");
    assert!(loads.values().all(|load| (*load as f64 - share).abs() <= 0.2 * share), "{loads:?}");
}

#[tokio::test]
async fn addresses_are_spread_over_agents_and_redistributed_when_one_dies() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-many", assigned(200, &NODES)).await;
    let proxy = Proxy::start(plane).await;
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&requests);
    // The rule records every request and matches none.
    proxy.on(
        move |seen| {
            heard.lock().unwrap().push(format!("{} {}", seen.method, seen.path.rsplit('/').next().unwrap()));
            false
        },
        crate::support::fault_proxy::Fault::CutBefore,
    );
    for node in NODES {
        agents.start(node, || proxy.client());
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    even(&held, 3);

    // At rest, agents only write heartbeats, for any number of addresses.
    requests.lock().unwrap().clear();
    let versions = agents.versions().await;
    let begin = Instant::now();
    tokio::time::sleep(Duration::from_secs(12)).await;
    let asked = std::mem::take(&mut *requests.lock().unwrap());
    let expected: BTreeSet<String> = NODES.iter().map(|node| format!("PUT {}", heartbeat_state::name(node))).collect();
    assert_eq!(asked.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(agents.versions().await, versions);
    let minute = asked.len() as f64 * 60.0 / begin.elapsed().as_secs_f64();
    println!("200 addresses, 3 agents, at rest: {minute:.0} requests a minute");

    let begin = Instant::now();
    agents.take("node-2").kill();
    let after = agents.held_by(TAKEOVER, &["node-1", "node-3"]).await;
    println!("200 addresses, 3 agents: all held again {:.1} s after one was killed", begin.elapsed().as_secs_f64());
    for node in ["node-1", "node-3"] {
        let kept = of(&held, node);
        assert!(kept.iter().all(|(address, node)| after[address] == *node), "{node} keeps its addresses");
    }
    even(&after, 2);
    assert_eq!(agents.holder_of_heartbeat("node-2").await, "", "another agent has ended the heartbeat of node-2");
}

#[tokio::test]
async fn released_addresses_are_taken_over_at_once() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-stopped", assigned(9, &NODES)).await;
    for node in NODES {
        agents.start(node, || plane.client());
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    even(&held, 3);
    for _ in 0..2 {
        let stopped = agents.take("node-1");
        let begin = Instant::now();
        stopped.stop().await;
        // Its heartbeat would have expired later.
        agents.held_by(Duration::from_secs(10), &["node-2", "node-3"]).await;
        println!("all held again {:.1} s after an agent was told to stop", begin.elapsed().as_secs_f64());
        // An agent that restarts need not wait for its former heartbeat to expire.
        agents.start("node-1", || plane.client());
        let identity = eventually("a heartbeat", async || {
            Some(agents.holder_of_heartbeat("node-1").await).filter(|holder| !holder.is_empty())
        });
        assert!(identity.await.starts_with("node-1_agent_"));
    }
    let log = agents.network.log();
    for (index, added) in log.iter().enumerate().filter(|(_, event)| matches!(event.change, Change::Added(_))) {
        let mut next = log[index + 1..].iter().filter(|e| e.address == added.address && e.node == added.node);
        assert_eq!(next.next().map(|event| &event.change), Some(&Change::Announced), "after {added:?}");
    }
}

#[tokio::test]
async fn short_api_server_outage_moves_no_address() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-away", assigned(9, &NODES)).await;
    let connection = StallingConnection::new(plane).await;
    for node in NODES {
        agents.start(node, || connection.client(plane));
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    let (versions, log) = (agents.versions().await, without_announcements(agents.network.log()));
    let mut identities = Vec::new();
    for node in NODES {
        identities.push(agents.holder_of_heartbeat(node).await);
    }
    for _ in 0..2 {
        connection.stall();
        tokio::time::sleep(Duration::from_secs(8)).await;
        connection.resume();
        // Longer than the validity of a heartbeat that could not be renewed.
        tokio::time::sleep(Duration::from_secs(13)).await;
    }
    assert_eq!(agents.held_by(PATIENCE, &NODES).await, held);
    assert_eq!(without_announcements(agents.network.log()), log, "no address was added or released");
    assert_eq!(agents.versions().await, versions);
    for (node, identity) in NODES.into_iter().zip(identities) {
        assert_eq!(agents.holder_of_heartbeat(node).await, identity);
    }
}

#[tokio::test]
async fn isolated_agent_releases_addresses_before_another_takes_over() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-cut-off", assigned(6, &NODES)).await;
    let connection = StallingConnection::new(plane).await;
    agents.start("node-1", || connection.client(plane));
    for node in ["node-2", "node-3"] {
        agents.start(node, || plane.client());
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    let lost: BTreeSet<IpAddr> = of(&held, "node-1").into_keys().collect();
    assert_eq!(lost.len(), 2);
    let before = agents.network.log().len();
    connection.stall();
    let after = agents.held_by(TAKEOVER, &["node-2", "node-3"]).await;
    let log = agents.network.log().split_off(before);
    for address in &lost {
        let about: Vec<&str> = log
            .iter()
            .filter(|event| event.address == *address && event.change != Change::Announced)
            .map(|event| event.node.as_str())
            .collect();
        assert_eq!(about, ["node-1", after[address].as_str()], "{address} is released before it is added");
    }
    // The agent that is back takes no address from the others.
    connection.resume();
    let back = eventually("a heartbeat of node-1", async || {
        Some(agents.holder_of_heartbeat("node-1").await).filter(|holder| !holder.is_empty())
    });
    back.await;
    agents.assign(|all| all.extend(assigned(8, &NODES)));
    let end = agents.held_by(PATIENCE, &NODES).await;
    assert!(after.iter().all(|(address, node)| end[address] == *node), "{after:?} {end:?}");
    assert_eq!(loads(&end)["node-1"], 2, "new addresses go to the agent with the fewest: {end:?}");
}

#[tokio::test]
async fn agent_that_was_suspended_takes_no_address_back() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-paused", assigned(6, &NODES)).await;
    for node in NODES {
        agents.start(node, || plane.client());
    }
    agents.held_by(PATIENCE, &NODES).await;
    let former = agents.holder_of_heartbeat("node-1").await;
    let before = agents.network.log().len();
    agents.running["node-1"].pause.suspend();
    let others = ["node-2", "node-3"];
    let all: BTreeSet<IpAddr> = agents.assignments.borrow().keys().copied().collect();
    let after = eventually_within(TAKEOVER, "the other agents to hold all addresses", async || {
        let held = agents.network.holders();
        let good = held.len() == all.len() && held.values().all(|node| others.contains(&node.as_str()));
        good.then_some(held)
    });
    let after = after.await;
    agents.running["node-1"].pause.resume();
    eventually("a new heartbeat of node-1", async || {
        let holder = agents.holder_of_heartbeat("node-1").await;
        (!holder.is_empty() && holder != former).then_some(())
    })
    .await;
    assert_eq!(agents.held_by(PATIENCE, &NODES).await, after);
    let log = without_announcements(agents.network.log().split_off(before));
    let changes: Vec<_> = log.into_iter().filter(|event| event.node == "node-1").map(|event| event.change).collect();
    assert_eq!(changes, vec![Change::Released { in_time: false }; 2], "the lifetimes of its addresses had ended");
}

#[tokio::test]
async fn held_addresses_follow_the_assignments() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-follows", assigned(4, &["node-1"])).await;
    for node in ["node-1", "node-2"] {
        agents.start(node, || plane.client());
    }
    agents.held_by(PATIENCE, &["node-1"]).await;

    // The ports of an address change.
    agents.assign(|all| all.get_mut(&address(0)).unwrap().ports = [(Protocol::Udp, 53)].into());
    eventually("other ports", async || {
        let change = Change::Ports([(Protocol::Udp, 53)].into());
        let event = Event { address: address(0), node: "node-1".to_owned(), change };
        agents.network.log().contains(&event).then_some(())
    })
    .await;

    // An address may be on another node.
    agents.assign(|all| all.get_mut(&address(1)).unwrap().nodes = ["node-2".to_owned()].into());
    eventually("another node", async || (agents.network.holders().get(&address(1))? == "node-2").then_some(())).await;
    agents.held_by(PATIENCE, &["node-1", "node-2"]).await;

    // An address may be on no node, or is not assigned any more.
    agents.assign(|all| all.get_mut(&address(2)).unwrap().nodes.clear());
    agents.assign(|all| drop(all.remove(&address(3))));
    eventually("two addresses to be released", async || (agents.network.holders().len() == 2).then_some(())).await;
    eventually("the claim to be deleted", async || {
        agents.leases.get_opt(&name(address(3))).await.unwrap().is_none().then_some(())
    })
    .await;
    let claims = agents.claims().await;
    assert_eq!(claims, [(address(0), "node-1".to_owned()), (address(1), "node-2".to_owned())].into());
    agents.network.assert_no_conflicts();
}

#[tokio::test]
async fn agents_recreate_deleted_leases() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-deleted", assigned(6, &NODES)).await;
    for node in NODES {
        agents.start(node, || plane.client());
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    agents.leases.delete_collection(&<_>::default(), &ListParams::default()).await.unwrap();
    eventually("all Leases", async || (agents.all().await.len() == 9).then_some(())).await;
    assert_eq!(agents.held_by(PATIENCE, &NODES).await, held);
}
