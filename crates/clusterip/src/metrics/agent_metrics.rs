//! The metrics of an agent.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::labels::{VersionLabels, label_values};

label_values! {
    /// The result of a renewal of the heartbeat.
    Renewal {
        /// The heartbeat was renewed.
        Renewed = "renewed",
        /// The heartbeat was not renewed: the renewal failed and is tried again, or another agent of the same node may
        /// be alive.
        Failed = "failed",
    }
}

label_values! {
    /// A step on the network of the node.
    Step {
        /// The address is added or kept, with its ports open.
        Hold = "hold",
        /// The address is removed.
        Release = "release",
        /// The address is announced to the neighbours.
        Announce = "announce",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RenewalLabels {
    result: Renewal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StepLabels {
    step: Step,
}

/// The metrics of an agent.
#[derive(Default)]
pub(super) struct AgentMetrics {
    held: Gauge,
    alive: Gauge,
    renewals: Labelled<RenewalLabels, Counter>,
    failures: Labelled<StepLabels, Counter>,
    announcements: Counter,
    given_up: Counter,
}

impl AgentMetrics {
    /// Registers all metrics with the value zero.
    pub(super) fn register(&self, registry: &mut Registry) {
        let info: Labelled<VersionLabels, Gauge> = Labelled::default();
        info.get_or_create(&VersionLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("agent_info", "The version of the agent; always 1", info);
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
            drop(self.renewals.get_or_create(&RenewalLabels { result }));
        }
        for &step in Step::ALL {
            drop(self.failures.get_or_create(&StepLabels { step }));
        }
    }

    pub(super) fn held(&self, addresses: usize) {
        self.held.set(i64::try_from(addresses).unwrap_or(i64::MAX));
    }

    pub(super) fn alive(&self, alive: bool) {
        self.alive.set(i64::from(alive));
    }

    pub(super) fn renewal(&self, result: Renewal) {
        self.renewals.get_or_create(&RenewalLabels { result }).inc();
    }

    pub(super) fn failed(&self, step: Step) {
        self.failures.get_or_create(&StepLabels { step }).inc();
    }

    pub(super) fn announced(&self) {
        self.announcements.inc();
    }

    pub(super) fn given_up(&self) {
        self.given_up.inc();
    }
}
