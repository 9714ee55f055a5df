//! A fake network that several agents of one test share, and that records what they do to it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clusterip_agent::reconciler::Network;
use clusterip_failover::assignments::Port;
use tokio::time::Instant;

/// What a node did to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The node added the address, with these open ports.
    Added(Arc<[Port]>),
    /// The node replaced the open ports of the address with these.
    Ports(Arc<[Port]>),
    /// The node announced the address.
    Announced,
    /// The node removed the address, before (`in_time`) or after its lifetime had ended.
    Released { in_time: bool },
}

/// An entry of the log of a [`FakeNetwork`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub address: IpAddr,
    pub node: String,
    pub change: Change,
}

/// An address of a node: the end of its lifetime, and its open ports.
struct Hold {
    until: Instant,
    ports: Arc<[Port]>,
}

#[derive(Default)]
struct State {
    /// The nodes of each address.
    held: BTreeMap<IpAddr, BTreeMap<String, Hold>>,
    log: Vec<Event>,
    conflicts: Vec<String>,
}

/// The addresses of all nodes. An address disappears at the end of its lifetime, as it does in the kernel.
#[derive(Clone, Default)]
pub struct FakeNetwork(Arc<Mutex<State>>);

impl FakeNetwork {
    /// The interface of the node of this name to the network.
    pub fn node(&self, name: &str) -> NodeNetwork {
        NodeNetwork { network: self.clone(), name: name.to_owned() }
    }

    /// The node of each address now.
    pub fn holders(&self) -> BTreeMap<IpAddr, String> {
        let (now, state) = (Instant::now(), self.lock());
        let holder = |nodes: &BTreeMap<String, Hold>| {
            nodes.iter().find(|(_, hold)| now < hold.until).map(|(node, _)| node.clone())
        };
        state.held.iter().filter_map(|(address, nodes)| Some((*address, holder(nodes)?))).collect()
    }

    /// All events, in order.
    pub fn log(&self) -> Vec<Event> {
        self.lock().log.clone()
    }

    /// Checks that no address was ever on two nodes at once.
    #[track_caller]
    pub fn assert_no_conflicts(&self) {
        assert_eq!(self.lock().conflicts, Vec::<String>::new());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The interface of one node to a [`FakeNetwork`].
pub struct NodeNetwork {
    network: FakeNetwork,
    name: String,
}

impl NodeNetwork {
    fn event(&self, address: IpAddr, change: Change) -> Event {
        Event { address, node: self.name.clone(), change }
    }
}

impl Network for NodeNetwork {
    async fn hold(&self, address: IpAddr, ports: &Arc<[Port]>, until: Instant) -> anyhow::Result<bool> {
        let now = Instant::now();
        let mut state = self.network.lock();
        let nodes = state.held.entry(address).or_default();
        let other = nodes.iter().find(|(node, hold)| **node != self.name && now < hold.until);
        let conflict = other.map(|(node, hold)| {
            format!("{address}: added by {} while {node} has it for another {:?}", self.name, hold.until - now)
        });
        let hold = Hold { until, ports: ports.clone() };
        let before = nodes.insert(self.name.clone(), hold).filter(|hold| now < hold.until);
        let is_added = before.is_none();
        let change = match before {
            Some(hold) if hold.ports == *ports => None,
            Some(_) => Some(Change::Ports(ports.clone())),
            None => Some(Change::Added(ports.clone())),
        };
        state.log.extend(change.map(|change| self.event(address, change)));
        state.conflicts.extend(conflict);
        Ok(is_added)
    }

    async fn release(&self, address: IpAddr) -> anyhow::Result<()> {
        let now = Instant::now();
        let mut state = self.network.lock();
        let before = state.held.get_mut(&address).and_then(|nodes| nodes.remove(&self.name));
        let in_time = before.is_some_and(|hold| now < hold.until);
        state.log.push(self.event(address, Change::Released { in_time }));
        Ok(())
    }

    async fn announce(&self, address: IpAddr) -> anyhow::Result<()> {
        self.network.lock().log.push(self.event(address, Change::Announced));
        Ok(())
    }
}
