use std::collections::BTreeMap;

use clusterip_cluster::label_values;
use clusterip_cluster::metrics::{Component, Counters, Number, begin_at_zero, scrape_lock, whole};
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::usage::PoolUsage;

label_values! {
    Assignment {
        Assigned = "assigned",
        /// The Node was changed by another client meanwhile.
        Conflict = "conflict",
        /// The blocks could not be written; the assignment is tried again.
        Failed = "failed",
        /// The pool is full. This is counted once until the result changes.
        Full = "full",
        /// No pool matches the Node. This is counted once until the result changes.
        NoPool = "no_pool",
    }
}

label_values! {
    Misplaced {
        /// The blocks contain addresses that are never handed out.
        Withheld = "withheld",
        Outside = "outside",
        Shared = "shared",
        WrongPool = "wrong_pool",
    }
}

#[derive(Clone, Default)]
pub struct NodeMetrics {
    blocks: Labelled<[(&'static str, String); 3], Number>,
    assignments: Counters<Assignment>,
    misplaced: Labelled<[(&'static str, Misplaced); 1], Gauge>,
    pub waiting: Gauge,
}

impl Component for NodeMetrics {
    fn register(&self, registry: &mut Registry) {
        begin_at_zero(&self.assignments, "result", Assignment::ALL);
        self.misplaced(&BTreeMap::new());
        let Self { blocks, assignments, misplaced, waiting } = self.clone();
        let about = "Blocks of the pool of Nodes: usable ones, those that Nodes have, and those that are free now";
        registry.register("node_pool_blocks", about, blocks);
        registry.register("node_assignments", "Assignments of pod CIDRs to Nodes, by result", assignments);
        let about = "Nodes with wrong pod CIDRs, by reason; 0 if this process is not the leader";
        registry.register("misplaced_nodes", about, misplaced);
        let about = "Nodes that wait for pod CIDRs; 0 if this process is not the leader";
        registry.register("nodes_waiting", about, waiting);
    }
}

impl NodeMetrics {
    pub fn blocks(&self, pools: &[PoolUsage]) {
        let _lock = scrape_lock();
        self.blocks.clear();
        for PoolUsage { pool, family, usage } in pools {
            for (state, count) in [("usable", usage.usable), ("used", usage.occupied()), ("free", usage.free)] {
                let labels = [("pool", pool.clone()), ("family", family.to_string()), ("state", state.to_owned())];
                self.blocks.get_or_create(&labels).set(count as f64);
            }
        }
    }

    pub fn assigned(&self, result: Assignment) {
        self.assignments.get_or_create(&[("result", result)]).inc();
    }

    pub fn misplaced(&self, nodes: &BTreeMap<Misplaced, u64>) {
        let _lock = scrape_lock();
        for &reason in Misplaced::ALL {
            let count = nodes.get(&reason).copied().unwrap_or_default();
            self.misplaced.get_or_create(&[("reason", reason)]).set(whole(count));
        }
    }
}
