//! A fake network that several agents of one test share, and that notices if two of them have an address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clusterip_agent::reconciler::Network;
use clusterip_failover::assignments::Port;
use tokio::time::Instant;

#[derive(Default)]
struct State {
    /// The nodes of each address, and the end of its lifetime there.
    held: BTreeMap<IpAddr, BTreeMap<String, Instant>>,
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
        let holder = |nodes: &BTreeMap<String, Instant>| {
            nodes.iter().find(|(_, until)| now < **until).map(|(node, _)| node.clone())
        };
        state.held.iter().filter_map(|(address, nodes)| Some((*address, holder(nodes)?))).collect()
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

impl Network for NodeNetwork {
    async fn hold(&self, address: IpAddr, _ports: &Arc<[Port]>, until: Instant) -> anyhow::Result<bool> {
        let now = Instant::now();
        let mut state = self.network.lock();
        let nodes = state.held.entry(address).or_default();
        let other = nodes.iter().find(|(node, until)| **node != self.name && now < **until);
        let conflict = other.map(|(node, until)| {
            format!("{address}: added by {} while {node} has it for another {:?}", self.name, *until - now)
        });
        let is_added = nodes.insert(self.name.clone(), until).is_none_or(|before| before <= now);
        state.conflicts.extend(conflict);
        Ok(is_added)
    }

    async fn release(&self, address: IpAddr) -> anyhow::Result<()> {
        self.network.lock().held.get_mut(&address).and_then(|nodes| nodes.remove(&self.name));
        Ok(())
    }

    async fn announce(&self, _address: IpAddr) -> anyhow::Result<()> {
        Ok(())
    }
}
