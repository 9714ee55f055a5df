use clusterip_cluster::label_values;
use clusterip_cluster::metrics::{Component, Counters, Number, begin_at_zero, scrape_lock};
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

#[derive(Clone, Default)]
pub struct ExternalMetrics {
    addresses: Labelled<[(&'static str, String); 3], Number>,
    pub assignments: Counters<AssignmentResult>,
    pub takeovers: Counter,
    pub waiting: Gauge,
}

impl Component for ExternalMetrics {
    fn register(&self, registry: &mut Registry) {
        let Self { addresses, assignments, takeovers, waiting } = self.clone();
        begin_at_zero(&assignments, "result", AssignmentResult::ALL);
        let about = "Addresses of the external pool: usable ones, those that Services have, and those that a node \
                     holds; none if this process is not the leader";
        registry.register("external_pool_addresses", about, addresses);
        let about = "Assignments of external addresses to Services after their admission, by result";
        registry.register("external_assignments", about, assignments);
        let about = "External addresses that moved to another node while this process was the leader";
        registry.register("external_takeovers", about, takeovers);
        let about = "Services that wait for an external address; 0 if this process is not the leader";
        registry.register("external_services_waiting", about, waiting);
    }
}

impl ExternalMetrics {
    pub fn pools(&self, pools: &[PoolUsage]) {
        let _lock = scrape_lock();
        self.addresses.clear();
        for PoolUsage { pool, family, usage } in pools {
            let held = usage.held.unwrap_or_default();
            for (state, count) in [("usable", usage.usable), ("assigned", usage.occupied()), ("held", held)] {
                let labels = [("pool", pool.clone()), ("family", family.to_string()), ("state", state.to_owned())];
                self.addresses.get_or_create(&labels).set(count as f64);
            }
        }
    }
}
