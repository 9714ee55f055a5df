//! The metrics of external addresses in the server.

use clusterip_cluster::label_values;
use clusterip_cluster::metrics::{Component, Number, ScrapeLock, length};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::usage::PoolUsage;

label_values! {
    /// The result of assigning external addresses to a Service that did not get them at admission.
    AssignmentResult {
        Assigned = "assigned",
        /// The Service was changed by another client meanwhile.
        Conflict = "conflict",
        /// The policy could not be asked, or the addresses could not be written; the assignment is tried again.
        Failed = "failed",
        /// The policy does not assign an address. This is counted once until the policy answers differently.
        Refused = "refused",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    pool: String,
    family: String,
    state: &'static str,
}

#[derive(Clone, Default)]
pub struct ExternalMetrics {
    lock: ScrapeLock,
    addresses: Labelled<AddressLabels, Number>,
    assignments: Labelled<[(&'static str, AssignmentResult); 1], Counter>,
    takeovers: Counter,
    waiting: Gauge,
}

impl Component for ExternalMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "external_pool_addresses",
            "Addresses of the external pool: usable ones, those that Services have, and those that a node holds; \
             none if this process is not the leader",
            self.addresses.clone(),
        );
        registry.register(
            "external_assignments",
            "Assignments of external addresses to Services after their admission, by result",
            self.assignments.clone(),
        );
        registry.register(
            "external_takeovers",
            "External addresses that moved to another node while this process was the leader",
            self.takeovers.clone(),
        );
        registry.register(
            "external_services_waiting",
            "Services that wait for an external address; 0 if this process is not the leader",
            self.waiting.clone(),
        );
        for &result in AssignmentResult::ALL {
            drop(self.assignments.get_or_create(&[("result", result)]));
        }
    }
}

impl ExternalMetrics {
    pub fn new(lock: ScrapeLock) -> Self {
        Self { lock, ..Self::default() }
    }

    /// Sets the usage of all pools. Pools that are not in the list are removed.
    pub fn pools(&self, pools: &[PoolUsage]) {
        let _lock = self.lock.hold();
        self.addresses.clear();
        for PoolUsage { pool, family, usage } in pools {
            let held = usage.held.unwrap_or_default();
            for (state, count) in [("usable", usage.usable), ("assigned", usage.occupied()), ("held", held)] {
                let labels = AddressLabels { pool: pool.clone(), family: family.to_string(), state };
                self.addresses.get_or_create(&labels).set(count as f64);
            }
        }
    }

    pub fn assigned(&self, result: AssignmentResult) {
        self.assignments.get_or_create(&[("result", result)]).inc();
    }

    pub fn taken_over(&self) {
        self.takeovers.inc();
    }

    pub fn waiting(&self, services: usize) {
        self.waiting.set(length(services));
    }
}
