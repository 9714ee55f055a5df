use clusterip_cluster::label_values;
use clusterip_cluster::metrics::{Component, Counters, begin_at_zero, register_version};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

label_values! {
    Renewal {
        Renewed = "renewed",
        /// The renewal failed and is tried again, or another agent of the same node may be alive.
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
    pub held: Gauge,
    pub alive: Gauge,
    pub renewals: Counters<Renewal>,
    pub failures: Counters<Step>,
    pub announcements: Counter,
    pub given_up: Counter,
}

impl Component for AgentMetrics {
    fn register(&self, registry: &mut Registry) {
        let Self { held, alive, renewals, failures, announcements, given_up } = self.clone();
        begin_at_zero(&renewals, "result", Renewal::ALL);
        begin_at_zero(&failures, "step", Step::ALL);
        register_version(registry, "agent_info", "The version of the agent; always 1");
        registry.register("agent_alive", "Whether this agent may hold addresses: its heartbeat is renewed", alive);
        registry.register("agent_held_addresses", "External addresses that may be on the network of this node", held);
        registry.register("agent_heartbeats", "Renewals of the heartbeat of this agent, by result", renewals);
        let about = "Failed steps on the network of this node; they are tried again";
        registry.register("agent_network_failures", about, failures);
        let about = "Announcements of addresses to the neighbours, including repeated ones";
        registry.register("agent_announcements", about, announcements);
        let about = "Addresses that were left to other nodes because this one can't hold them";
        registry.register("agent_given_up_addresses", about, given_up);
    }
}
