//! Agents that hold external addresses on a fake network, several in one process, with a real API server. The
//! simulation of `crates/failover` has their faults, and `external/cases` has real processes and packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
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
use kube::{Client, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::control_plane::ControlPlane;
use crate::support::eventually::{MAX_WAIT, eventually, eventually_within};
use crate::support::fake_network::{Change, Event, FakeNetwork};
use crate::support::fault_proxy::{Fault, Proxy};

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
        nodes: Arc::new(nodes.iter().map(|node| (*node).to_owned()).collect()),
    };
    (0..count).map(|number| (address(number), assignment.clone())).collect()
}

/// The agents of a cluster and their fake network.
struct Agents {
    leases: Api<Lease>,
    namespace: String,
    network: FakeNetwork,
    assignments: watch::Sender<Arc<Assignments>>,
    running: BTreeMap<String, JoinHandle<()>>,
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
        let agent = AddressAgent {
            client: client(),
            heartbeat: client(),
            namespace: self.namespace.clone(),
            node: node.to_owned(),
            assignments: self.assignments.subscribe(),
            network: self.network.node(node),
            metrics: AgentMetrics::default(),
        };
        let task = tokio::spawn(agent.run(watch::Sender::new(Health::default()), std::future::pending()));
        self.running.insert(node.to_owned(), task);
    }

    /// Ends an agent at once, as SIGKILL does.
    fn kill(&mut self, node: &str) {
        self.running.remove(node).unwrap().abort();
    }

    fn assign(&self, change: impl FnOnce(&mut Assignments)) {
        self.assignments.send_modify(|all| change(Arc::make_mut(all)));
    }

    /// Waits until these nodes hold all assigned addresses, in the network and in the claims.
    async fn held_by(&self, within: Duration, nodes: &[&str]) -> BTreeMap<IpAddr, String> {
        let all: BTreeSet<IpAddr> = self.assignments.borrow().keys().copied().collect();
        let held = eventually_within(within, &format!("{} addresses on {nodes:?}", all.len()), async || {
            let held = self.network.holders();
            let good = held.keys().copied().collect::<BTreeSet<_>>() == all
                && held.values().all(|node| nodes.contains(&node.as_str()));
            good.then_some(held)
        })
        .await;
        self.network.assert_no_conflicts();
        assert_eq!(self.claims().await, held, "the claims differ from the network");
        held
    }

    async fn all(&self) -> Vec<Lease> {
        self.leases.list(&ListParams::default()).await.unwrap().items
    }

    async fn claims(&self) -> BTreeMap<IpAddr, String> {
        let claims = self.all().await.iter().filter_map(HolderClaim::of).collect::<Vec<_>>();
        claims.iter().filter_map(|claim| Some((claim.address, claim.node()?.to_owned()))).collect()
    }

    /// The resource versions of all claims, which change if a claim is written.
    async fn versions(&self) -> BTreeMap<String, Option<String>> {
        let claims = self.all().await.into_iter().filter(|lease| HolderClaim::of(lease).is_some());
        claims.map(|lease| (lease.name_any(), lease.resource_version())).collect()
    }
}

/// Checks that the loads of the nodes differ from the mean by 20 % at most.
#[track_caller]
fn even(held: &BTreeMap<IpAddr, String>, nodes: usize) {
    let mut loads = BTreeMap::<&str, usize>::new();
    for node in held.values() {
        *loads.entry(node).or_default() += 1;
    }
    let share = held.len() as f64 / nodes as f64;
    assert_eq!(loads.len(), nodes, "{loads:?}");
    assert!(loads.values().all(|load| (*load as f64 - share).abs() <= 0.2 * share), "{loads:?}");
}

#[tokio::test]
async fn addresses_are_spread_over_agents_and_redistributed_when_one_dies() {
    let plane = ControlPlane::shared().await;
    let mut agents = Agents::new(&plane, "agent-many", assigned(200, &NODES)).await;
    let proxy = Proxy::start(&plane).await;
    let requests: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&requests);
    // The rule records every request and matches none.
    proxy.on(
        move |seen| {
            recorded.lock().unwrap().push(format!("{} {}", seen.method, seen.path.rsplit('/').next().unwrap()));
            false
        },
        Fault::CutBefore,
    );
    for node in NODES {
        agents.start(node, || proxy.client());
    }
    let held = agents.held_by(MAX_WAIT, &NODES).await;
    even(&held, 3);

    // At rest, agents only write heartbeats, for any number of addresses.
    requests.lock().unwrap().clear();
    let versions = agents.versions().await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let asked: BTreeSet<String> = std::mem::take(&mut *requests.lock().unwrap()).into_iter().collect();
    assert_eq!(asked, NODES.iter().map(|node| format!("PUT {}", heartbeat_state::name(node))).collect());
    assert_eq!(agents.versions().await, versions);

    agents.kill("node-2");
    let after = agents.held_by(TAKEOVER, &["node-1", "node-3"]).await;
    let kept = |(address, node): (&IpAddr, &String)| node == "node-2" || after[address] == *node;
    assert!(held.iter().all(kept), "the other agents keep their addresses");
    even(&after, 2);
    let heartbeat = agents.leases.get(&heartbeat_state::name("node-2")).await.unwrap();
    let ended = heartbeat.spec.unwrap().holder_identity;
    assert_eq!(ended.as_deref(), Some(""), "another agent has ended the heartbeat of node-2");
}

#[tokio::test]
async fn held_addresses_follow_the_assignments_and_deleted_leases_are_recreated() {
    let plane = ControlPlane::shared().await;
    let mut agents = Agents::new(&plane, "agent-follows", assigned(4, &["node-1"])).await;
    for node in ["node-1", "node-2"] {
        agents.start(node, || plane.client());
    }
    agents.held_by(MAX_WAIT, &["node-1"]).await;

    // The ports of an address change.
    agents.assign(|all| all.get_mut(&address(0)).unwrap().ports = [(Protocol::Udp, 53)].into());
    eventually("other ports", async || {
        let change = Change::Ports([(Protocol::Udp, 53)].into());
        let event = Event { address: address(0), node: "node-1".to_owned(), change };
        agents.network.log().contains(&event).then_some(())
    })
    .await;

    // An address may be on another node.
    agents.assign(|all| all.get_mut(&address(1)).unwrap().nodes = Arc::new(["node-2".to_owned()].into()));
    eventually("another node", async || (agents.network.holders().get(&address(1))? == "node-2").then_some(())).await;
    agents.held_by(MAX_WAIT, &["node-1", "node-2"]).await;

    // An address may be on no node, or is not assigned any more.
    agents.assign(|all| all.get_mut(&address(2)).unwrap().nodes = Arc::default());
    agents.assign(|all| drop(all.remove(&address(3))));
    eventually("two addresses to be released", async || (agents.network.holders().len() == 2).then_some(())).await;
    eventually("the claim to be deleted", async || {
        agents.leases.get_opt(&HolderClaim::lease_name(address(3))).await.unwrap().is_none().then_some(())
    })
    .await;
    let claims = agents.claims().await;
    assert_eq!(claims, [(address(0), "node-1".to_owned()), (address(1), "node-2".to_owned())].into());

    // Each of the two addresses keeps its holder, and each agent its heartbeat.
    agents.leases.delete_collection(&<_>::default(), &ListParams::default()).await.unwrap();
    eventually("all Leases", async || (agents.all().await.len() >= 4).then_some(())).await;
    assert_eq!(agents.claims().await, claims);
    agents.network.assert_no_conflicts();
}
