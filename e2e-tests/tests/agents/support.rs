//! Agents on a fake network: starts, suspends and kills them, and compares their claims with the network.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use clusterip_agent::agent_metrics::AgentMetrics;
use clusterip_agent::event_loop::AddressAgent;
use clusterip_agent::heartbeat::Health;
use clusterip_core::service_key::ServiceKey;
use clusterip_failover::assignments::{Assignment, Assignments, Protocol};
use clusterip_failover::claims::HolderClaim;
use clusterip_failover::heartbeat_state;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually_within};
use crate::support::fake_network::{Change, Event, FakeNetwork};

pub const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];

/// The maximum time until another agent holds the addresses of an agent that died.
pub const TAKEOVER: Duration = Duration::from_secs(25);

pub fn address(number: u32) -> IpAddr {
    Ipv4Addr::from(0x0a00_0900 + number).into()
}

pub fn assigned(count: u32, nodes: &[&str]) -> Assignments {
    let assignment = Assignment {
        service: ServiceKey::new("shop", "web"),
        ports: [(Protocol::Tcp, 443)].into(),
        nodes: Arc::new(nodes.iter().map(|node| (*node).to_owned()).collect()),
    };
    (0..count).map(|number| (address(number), assignment.clone())).collect()
}

/// Suspends the work of an agent, as SIGSTOP suspends a process.
#[derive(Clone, Default)]
pub struct Pause(Arc<Mutex<(bool, Option<Waker>)>>);

impl Pause {
    pub fn suspend(&self) {
        self.0.lock().unwrap().0 = true;
    }

    pub fn resume(&self) {
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

pub struct Running {
    pub task: JoinHandle<()>,
    pub stop: oneshot::Sender<()>,
    pub pause: Pause,
    pub health: watch::Receiver<Health>,
}

impl Running {
    /// Ends the agent at once, as SIGKILL does.
    pub fn kill(self) {
        self.task.abort();
    }

    /// Ends the agent in an orderly way, as SIGTERM does.
    pub async fn stop(self) {
        let _ = self.stop.send(());
        tokio::time::timeout(MAX_WAIT, self.task).await.unwrap().unwrap();
    }
}

/// The agents of a cluster and their fake network.
pub struct Agents {
    pub leases: Api<Lease>,
    pub namespace: String,
    pub network: FakeNetwork,
    pub assignments: watch::Sender<Arc<Assignments>>,
    pub running: BTreeMap<String, Running>,
}

impl Agents {
    pub async fn new(plane: &ControlPlane, name: &str, assignments: Assignments) -> Self {
        let namespace = plane.namespace(name).await;
        Self {
            leases: Api::namespaced(plane.client(), &namespace),
            namespace,
            network: FakeNetwork::default(),
            assignments: watch::Sender::new(Arc::new(assignments)),
            running: BTreeMap::new(),
        }
    }

    pub fn start(&mut self, node: &str, client: impl Fn() -> Client) {
        let agent = AddressAgent {
            client: client(),
            heartbeat: client(),
            namespace: self.namespace.clone(),
            node: node.to_owned(),
            assignments: self.assignments.subscribe(),
            network: self.network.node(node),
            metrics: AgentMetrics::default(),
        };
        let (stop, stopped) = oneshot::channel();
        let (health, seen) = watch::channel(Health::default());
        let pause = Pause::default();
        let work = agent.run(health, async { stopped.await.unwrap() });
        let task = tokio::spawn(pause.clone().of(work));
        self.running.insert(node.to_owned(), Running { task, stop, pause, health: seen });
    }

    pub fn take(&mut self, node: &str) -> Running {
        self.running.remove(node).unwrap()
    }

    pub fn assign(&self, change: impl FnOnce(&mut Assignments)) {
        self.assignments.send_modify(|all| change(Arc::make_mut(all)));
    }

    /// Waits until these nodes hold all assigned addresses, in the network and in the claims.
    pub async fn held_by(&self, within: Duration, nodes: &[&str]) -> BTreeMap<IpAddr, String> {
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
            let reported = tokio::time::timeout(MAX_WAIT, health.wait_for(|health| health.holding == mine)).await;
            reported.unwrap_or_else(|_| panic!("{node} does not report its addresses")).unwrap();
        }
        held
    }

    pub async fn all(&self) -> Vec<Lease> {
        self.leases.list(&ListParams::default()).await.unwrap().items
    }

    pub async fn claims(&self) -> BTreeMap<IpAddr, String> {
        let claims = self.all().await.iter().filter_map(HolderClaim::of).collect::<Vec<_>>();
        claims.iter().filter_map(|claim| Some((claim.address, claim.node()?.to_owned()))).collect()
    }

    /// The resource versions of all claims, which change if a claim is written.
    pub async fn versions(&self) -> BTreeMap<String, Option<String>> {
        let claims = self.all().await.into_iter().filter(|lease| HolderClaim::of(lease).is_some());
        claims.map(|lease| (lease.name_any(), lease.resource_version())).collect()
    }

    pub async fn holder_of_heartbeat(&self, node: &str) -> String {
        let lease = self.leases.get(&heartbeat_state::name(node)).await.unwrap();
        lease.spec.unwrap().holder_identity.unwrap()
    }
}

pub fn loads(held: &BTreeMap<IpAddr, String>) -> BTreeMap<&str, usize> {
    held.values().fold(BTreeMap::new(), |mut loads, node| {
        *loads.entry(node.as_str()).or_default() += 1;
        loads
    })
}

pub fn of<'a>(held: &BTreeMap<IpAddr, String>, node: &'a str) -> BTreeMap<IpAddr, &'a str> {
    held.iter().filter(|(_, holder)| *holder == node).map(|(address, _)| (*address, node)).collect()
}

/// The events without announcements, which are repeated.
pub fn without_announcements(log: Vec<Event>) -> Vec<Event> {
    log.into_iter().filter(|event| event.change != Change::Announced).collect()
}

/// Checks that the loads of the nodes differ from the mean by 20 % at most.
#[track_caller]
pub fn even(held: &BTreeMap<IpAddr, String>, nodes: usize) {
    let (loads, share) = (loads(held), held.len() as f64 / nodes as f64);
    assert_eq!(loads.len(), nodes, "{loads:?}");
    assert!(loads.values().all(|load| (*load as f64 - share).abs() <= 0.2 * share), "{loads:?}");
}
