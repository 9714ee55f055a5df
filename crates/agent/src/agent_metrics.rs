//! The metrics of an agent.

use clusterip_cluster::host_metrics::ClusterMetrics;
use clusterip_cluster::label_values;
use clusterip_cluster::metrics::{Component, Exposition, ScrapeLock, length, register_version};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

label_values! {
    Renewal {
        Renewed = "renewed",
        /// The heartbeat was not renewed: the renewal failed and is tried again, or another agent of the same node may
        /// be alive.
        Failed = "failed",
    }
}

label_values! {
    Step {
        /// The address is added or kept, with its ports open.
        Hold = "hold",
        Release = "release",
        Announce = "announce",
    }
}

/// The metrics of an agent. Clones share the values.
#[derive(Clone, Default)]
pub struct AgentMetrics {
    held: Gauge,
    alive: Gauge,
    renewals: Labelled<[(&'static str, Renewal); 1], Counter>,
    failures: Labelled<[(&'static str, Step); 1], Counter>,
    announcements: Counter,
    given_up: Counter,
}

impl Component for AgentMetrics {
    fn register(&self, registry: &mut Registry) {
        register_version(registry, "agent_info", "The version of the agent; always 1");
        registry.register(
            "agent_alive",
            "Whether this agent may hold addresses: its heartbeat is renewed",
            self.alive.clone(),
        );
        registry.register(
            "agent_held_addresses",
            "External addresses that may be on the network of this node",
            self.held.clone(),
        );
        registry.register(
            "agent_heartbeats",
            "Renewals of the heartbeat of this agent, by result",
            self.renewals.clone(),
        );
        registry.register(
            "agent_network_failures",
            "Failed steps on the network of this node; they are tried again",
            self.failures.clone(),
        );
        registry.register(
            "agent_announcements",
            "Announcements of addresses to the neighbours, including repeated ones",
            self.announcements.clone(),
        );
        registry.register(
            "agent_given_up_addresses",
            "Addresses that were left to other nodes because this one can't hold them",
            self.given_up.clone(),
        );
        for &result in Renewal::ALL {
            drop(self.renewals.get_or_create(&[("result", result)]));
        }
        for &step in Step::ALL {
            drop(self.failures.get_or_create(&[("step", step)]));
        }
    }
}

impl AgentMetrics {
    pub fn held(&self, addresses: usize) {
        self.held.set(length(addresses));
    }

    pub fn alive(&self, alive: bool) {
        self.alive.set(i64::from(alive));
    }

    pub fn renewal(&self, result: Renewal) {
        self.renewals.get_or_create(&[("result", result)]).inc();
    }

    pub fn failed(&self, step: Step) {
        self.failures.get_or_create(&[("step", step)]).inc();
    }

    pub fn announced(&self) {
        self.announcements.inc();
    }

    /// Records an address that was left to other nodes because this node can't hold it.
    pub fn given_up(&self) {
        self.given_up.inc();
    }
}

/// What an agent exposes: its own metrics, and those of the cluster and the settings that it follows.
pub struct ExposedMetrics {
    pub agent: AgentMetrics,
    pub cluster: ClusterMetrics,
    exposition: Exposition,
}

impl Default for ExposedMetrics {
    fn default() -> Self {
        Self::new()
    }
}

impl ExposedMetrics {
    pub fn new() -> Self {
        let lock = ScrapeLock::default();
        let (agent, cluster) = (AgentMetrics::default(), ClusterMetrics::new(lock.clone()));
        let mut exposition = Exposition::new(lock);
        exposition.add(&cluster);
        exposition.add(&agent);
        Self { agent, cluster, exposition }
    }

    pub fn encode(&self) -> String {
        self.exposition.encode()
    }
}
