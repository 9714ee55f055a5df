//! Agents that hold external addresses, several in one process, against a real API server.

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

use crate::support::air::{Air, What};
use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{PATIENCE, eventually, eventually_within};
use crate::support::line::Line;
use crate::support::proxy::Proxy;

const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// Within what an address of an agent that died is held again.
const DEAD: Duration = Duration::from_secs(25);

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

/// A process that can stand still.
#[derive(Clone, Default)]
struct Pause(Arc<Mutex<(bool, Option<Waker>)>>);

impl Pause {
    fn stand_still(&self) {
        self.0.lock().unwrap().0 = true;
    }

    fn go_on(&self) {
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
    /// As SIGKILL does it.
    fn kill(self) {
        self.task.abort();
    }

    /// As SIGTERM does it.
    async fn stop(self) {
        let _ = self.stop.send(());
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

/// The agents of a cluster, and what they hold.
struct Agents {
    leases: Api<Lease>,
    namespace: String,
    air: Air,
    assignments: watch::Sender<Arc<Assignments>>,
    running: BTreeMap<String, Running>,
}

impl Agents {
    async fn new(plane: &ControlPlane, name: &str, assignments: Assignments) -> Self {
        let namespace = plane.namespace(name).await;
        Self {
            leases: Api::namespaced(plane.client(), &namespace),
            namespace,
            air: Air::default(),
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
            network: self.air.node(node),
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

    /// Waits until these nodes have all that is assigned, by the network and by the claims.
    async fn held_by(&self, within: Duration, nodes: &[&str]) -> BTreeMap<IpAddr, String> {
        let all: BTreeSet<IpAddr> = self.assignments.borrow().keys().copied().collect();
        let what = format!("{} addresses on {nodes:?}", all.len());
        let held = eventually_within(within, &what, async || {
            let held = self.air.holders();
            let good = held.keys().copied().collect::<BTreeSet<_>>() == all
                && held.values().all(|node| nodes.contains(&node.as_str()));
            good.then_some(held)
        });
        let held = held.await;
        self.air.never_twice();
        assert_eq!(self.claims().await, held, "the claims say what the networks do");
        for (node, running) in &self.running {
            let mine = held.iter().filter(|(_, holder)| *holder == node).map(|(address, _)| *address);
            let mine: BTreeSet<IpAddr> = mine.collect();
            let mut health = running.health.clone();
            let told = tokio::time::timeout(PATIENCE, health.wait_for(|health| health.holding == mine)).await;
            told.unwrap_or_else(|_| panic!("{node} does not tell what it holds")).unwrap();
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

    /// The versions of all claims: the same, if nothing was written.
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

/// What happened, without announcements: those are repeated.
fn moves(log: Vec<(IpAddr, String, What)>) -> Vec<(IpAddr, String, What)> {
    log.into_iter().filter(|(_, _, what)| *what != What::Announced).collect()
}

/// All within 20 % of the same.
#[track_caller]
fn even(held: &BTreeMap<IpAddr, String>, nodes: usize) {
    let (loads, share) = (loads(held), held.len() as f64 / nodes as f64);
    assert_eq!(loads.len(), nodes, "{loads:?}");
    assert!(loads.values().all(|load| (*load as f64 - share).abs() <= 0.2 * share), "{loads:?}");
}

#[tokio::test]
async fn many_addresses_are_spread_and_shared_anew_when_one_dies() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-many", assigned(200, &NODES)).await;
    let proxy = Proxy::start(plane).await;
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&requests);
    // It sees every request, and none meets a fault.
    proxy.on(
        move |seen| {
            heard.lock().unwrap().push(format!("{} {}", seen.method, seen.path.rsplit('/').next().unwrap()));
            false
        },
        crate::support::proxy::Fault::CutBefore,
    );
    for node in NODES {
        agents.start(node, || proxy.client());
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    even(&held, 3);

    // At rest nothing is asked or written but heartbeats, however many addresses there are.
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
    let after = agents.held_by(DEAD, &["node-1", "node-3"]).await;
    println!("200 addresses, 3 agents: all held again {:.1} s after one was killed", begin.elapsed().as_secs_f64());
    for node in ["node-1", "node-3"] {
        let kept = of(&held, node);
        assert!(kept.iter().all(|(address, node)| after[address] == *node), "{node} keeps what it has");
    }
    even(&after, 2);
    assert_eq!(agents.holder_of_heartbeat("node-2").await, "", "it was ended");
}

#[tokio::test]
async fn what_an_agent_gives_back_is_taken_at_once() {
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
        // Before its heartbeat would have ended.
        agents.held_by(Duration::from_secs(10), &["node-2", "node-3"]).await;
        println!("all held again {:.1} s after an agent was told to stop", begin.elapsed().as_secs_f64());
        // Who comes back need not wait for itself.
        agents.start("node-1", || plane.client());
        let identity = eventually("a heartbeat", async || {
            Some(agents.holder_of_heartbeat("node-1").await).filter(|holder| !holder.is_empty())
        });
        assert!(identity.await.starts_with("node-1_agent_"));
    }
    let log = agents.air.log();
    for (index, (address, node, _)) in log.iter().enumerate().filter(|(_, (_, _, what))| matches!(what, What::Came(_)))
    {
        let mut next = log[index + 1..].iter().filter(|(other, by, _)| other == address && by == node);
        assert_eq!(next.next().map(|(_, _, what)| what), Some(&What::Announced), "{address} on {node}");
    }
}

#[tokio::test]
async fn while_the_api_server_is_away_for_a_moment_all_stays() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-away", assigned(9, &NODES)).await;
    let line = Line::new(plane).await;
    for node in NODES {
        agents.start(node, || line.client(plane));
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    let (versions, log) = (agents.versions().await, moves(agents.air.log()));
    let mut identities = Vec::new();
    for node in NODES {
        identities.push(agents.holder_of_heartbeat(node).await);
    }
    for _ in 0..2 {
        line.stall();
        tokio::time::sleep(Duration::from_secs(8)).await;
        line.resume();
        // Longer than a heartbeat counts that could not be renewed.
        tokio::time::sleep(Duration::from_secs(13)).await;
    }
    assert_eq!(agents.held_by(PATIENCE, &NODES).await, held);
    assert_eq!(moves(agents.air.log()), log, "nothing came or went");
    assert_eq!(agents.versions().await, versions);
    for (node, identity) in NODES.into_iter().zip(identities) {
        assert_eq!(agents.holder_of_heartbeat(node).await, identity);
    }
}

#[tokio::test]
async fn an_agent_that_is_cut_off_lets_go_before_another_takes_over() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-cut-off", assigned(6, &NODES)).await;
    let line = Line::new(plane).await;
    agents.start("node-1", || line.client(plane));
    for node in ["node-2", "node-3"] {
        agents.start(node, || plane.client());
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    let lost: BTreeSet<IpAddr> = of(&held, "node-1").into_keys().collect();
    assert_eq!(lost.len(), 2);
    let before = agents.air.log().len();
    line.stall();
    let after = agents.held_by(DEAD, &["node-2", "node-3"]).await;
    let log = agents.air.log().split_off(before);
    for address in &lost {
        let about: Vec<&str> = log
            .iter()
            .filter(|(other, _, what)| other == address && !matches!(what, What::Announced))
            .map(|(_, node, _)| node.as_str())
            .collect();
        assert_eq!(about, ["node-1", after[address].as_str()], "it goes first, then it comes");
    }
    // Who is back takes nothing from those who live.
    line.resume();
    let back = eventually("node-1", async || {
        Some(agents.holder_of_heartbeat("node-1").await).filter(|holder| !holder.is_empty())
    });
    back.await;
    agents.assign(|all| all.extend(assigned(8, &NODES)));
    let end = agents.held_by(PATIENCE, &NODES).await;
    assert!(after.iter().all(|(address, node)| end[address] == *node), "{after:?} {end:?}");
    assert_eq!(loads(&end)["node-1"], 2, "what is new goes to who has least: {end:?}");
}

#[tokio::test]
async fn an_agent_that_stood_still_takes_nothing_back() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-paused", assigned(6, &NODES)).await;
    for node in NODES {
        agents.start(node, || plane.client());
    }
    agents.held_by(PATIENCE, &NODES).await;
    let former = agents.holder_of_heartbeat("node-1").await;
    let before = agents.air.log().len();
    agents.running["node-1"].pause.stand_still();
    let others = ["node-2", "node-3"];
    let all: BTreeSet<IpAddr> = agents.assignments.borrow().keys().copied().collect();
    let after = eventually_within(DEAD, "the others to hold all", async || {
        let held = agents.air.holders();
        let good = held.len() == all.len() && held.values().all(|node| others.contains(&node.as_str()));
        good.then_some(held)
    });
    let after = after.await;
    agents.running["node-1"].pause.go_on();
    eventually("another term of node-1", async || {
        let holder = agents.holder_of_heartbeat("node-1").await;
        (!holder.is_empty() && holder != former).then_some(())
    })
    .await;
    assert_eq!(agents.held_by(PATIENCE, &NODES).await, after);
    let log = moves(agents.air.log().split_off(before));
    let by_it: Vec<_> = log.into_iter().filter(|(_, node, _)| node == "node-1").map(|(_, _, what)| what).collect();
    assert_eq!(by_it, vec![What::Released { in_time: false }; 2], "it only finds that they are gone");
}

#[tokio::test]
async fn what_is_held_follows_what_is_assigned() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-follows", assigned(4, &["node-1"])).await;
    for node in ["node-1", "node-2"] {
        agents.start(node, || plane.client());
    }
    agents.held_by(PATIENCE, &["node-1"]).await;

    // Other ports.
    agents.assign(|all| all.get_mut(&address(0)).unwrap().ports = [(Protocol::Udp, 53)].into());
    eventually("other ports", async || {
        let other = (address(0), "node-1".to_owned(), What::Ports([(Protocol::Udp, 53)].into()));
        agents.air.log().contains(&other).then_some(())
    })
    .await;

    // Another node.
    agents.assign(|all| all.get_mut(&address(1)).unwrap().nodes = ["node-2".to_owned()].into());
    eventually("another node", async || (agents.air.holders().get(&address(1))? == "node-2").then_some(())).await;
    agents.held_by(PATIENCE, &["node-1", "node-2"]).await;

    // None.
    agents.assign(|all| all.get_mut(&address(2)).unwrap().nodes.clear());
    agents.assign(|all| drop(all.remove(&address(3))));
    eventually("less", async || (agents.air.holders().len() == 2).then_some(())).await;
    eventually("its claim to go", async || {
        agents.leases.get_opt(&name(address(3))).await.unwrap().is_none().then_some(())
    })
    .await;
    let claims = agents.claims().await;
    assert_eq!(claims, [(address(0), "node-1".to_owned()), (address(1), "node-2".to_owned())].into());
    agents.air.never_twice();
}

#[tokio::test]
async fn leases_that_were_deleted_by_hand_are_made_again_by_who_holds_the_address() {
    let plane = ControlPlane::shared();
    let mut agents = Agents::new(plane, "agent-deleted", assigned(6, &NODES)).await;
    for node in NODES {
        agents.start(node, || plane.client());
    }
    let held = agents.held_by(PATIENCE, &NODES).await;
    agents.leases.delete_collection(&<_>::default(), &ListParams::default()).await.unwrap();
    eventually("all leases", async || (agents.all().await.len() == 9).then_some(())).await;
    assert_eq!(agents.held_by(PATIENCE, &NODES).await, held);
}
