//! A cluster in which a node holds the address of a Service.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::agent_cluster::{AgentCluster, BEGIN, within};
use crate::arp_probe::{Answers, Probe};
use crate::network::Inside;

/// How long the probe runs before and after a fault.
pub const PROBE_TIME: Duration = Duration::from_secs(1);

pub fn address(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 9, last))
}

/// A cluster with a Service whose address some node holds, and with listeners and a proxy on all nodes.
pub struct HeldAddress {
    pub cluster: AgentCluster,
    pub address: IpAddr,
    pub holder: usize,
    pub client: Inside,
    _listeners: Vec<Inside>,
}

impl HeldAddress {
    pub fn new() -> Self {
        Self::in_cluster(AgentCluster::new())
    }

    pub fn in_cluster(cluster: AgentCluster) -> Self {
        cluster.proxy();
        let address = address(10);
        let listeners = cluster.network.nodes.iter().map(|node| {
            let mut inside = node.inside();
            inside.expect("listen 80", "listening");
            inside.expect("listen 81", "listening");
            inside
        });
        let listeners = listeners.collect();
        cluster.serve("web", address);
        let holder = within(BEGIN, "a first holder", || cluster.holder(address));
        let client = cluster.network.client.inside();
        Self { cluster, address, holder, client, _listeners: listeners }
    }

    pub fn answers(&mut self) -> bool {
        self.client.ask(&format!("tcp {} 80 1", self.address)) == "answered"
    }

    /// Waits until another node holds the address and answers there. Returns this node.
    #[track_caller]
    pub fn taken_over(&mut self, begin: Instant, limit: Duration) -> usize {
        let (cluster, address, before) = (&self.cluster, self.address, self.holder);
        let left = limit.saturating_sub(begin.elapsed());
        let next = within(left, "another holder", || cluster.holder(address).filter(|next| *next != before));
        let hardware = cluster.network.nodes[next].hardware();
        within(limit.saturating_sub(begin.elapsed()), "an answer of the other holder", || {
            let answered = self.client.ask(&format!("tcp {address} 80 1")) == "answered";
            (answered && self.cluster.network.client.neighbour(&address.to_string()) == Some(hardware.clone()))
                .then_some(())
        });
        next
    }
}

/// Checks that at most one node has answered each ARP request, and that these nodes have answered one after the other.
#[track_caller]
pub fn assert_one_holder_at_a_time(cluster: &AgentCluster, probe: Probe, address: IpAddr, nodes: &[usize]) {
    // Probe for a while after the fault too.
    sleep(PROBE_TIME);
    let answers = probe.end();
    let mut seen: Vec<String> = Vec::new();
    for Answers { after, from } in &answers[&address] {
        assert_eq!(from.len(), 1, "{address} after {after} ms: {from:?}");
        let from = from.first().unwrap();
        if seen.last() != Some(from) {
            seen.push(from.clone());
        }
    }
    let hardware = |index: &usize| cluster.network.nodes[*index].hardware().replace(':', "-");
    assert_eq!(seen, nodes.iter().map(hardware).collect::<Vec<_>>(), "{address}");
}
