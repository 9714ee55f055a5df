//! The metrics of Services: the usage of their pools, moves, and replicas.

use std::collections::BTreeMap;

use clusterip_cluster::label_values;
use clusterip_cluster::metrics::{Component, Counters, Number, begin_at_zero, scrape_lock, whole};
use prometheus_client::metrics::family::Family as Labelled;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::usage::PoolUsage;

label_values! {
    MoveResult {
        Moved = "moved",
        /// The Service has its old address again, because no other was available.
        Kept = "kept",
        /// Not even the old address was available: the Service has one of no pool, or one that the API server picked.
        Unmanaged = "unmanaged",
        /// A user changed the Service during the move; the change was kept.
        UserChanged = "user_changed",
        Nothing = "nothing",
        /// The move could not be completed, and is tried again.
        Failed = "failed",
    }
}

label_values! {
    StayReason {
        /// The Service is being moved, or waits for its turn.
        Moving = "moving",
        ByHand = "by_hand",
        /// The Service has ready endpoints that can be reached at its present address.
        ReadyEndpoints = "ready_endpoints",
        LoadBalancer = "load_balancer",
        /// The annotation of the Service, or the command line, forbids moves.
        Never = "never",
        PoolFull = "pool_full",
        /// A brake of the controller stops the move for now.
        Brake = "brake",
        ControlPlane = "control_plane",
        /// No pool matches the Service, and the settings name no other place for it, or deny it.
        Unmatched = "unmatched",
        BeingDeleted = "being_deleted",
        NotRecorded = "not_recorded",
        TooLarge = "too_large",
    }
}

type PoolFamily = [(&'static str, String); 2];

#[derive(Clone, Default)]
pub struct ServiceMetrics {
    usable: Labelled<PoolFamily, Number>,
    used: Labelled<PoolFamily, Number>,
    free: Labelled<PoolFamily, Number>,
    unmatched: Labelled<[(&'static str, String); 1], Gauge>,
    pub ledger: Gauge,
    replicas: Labelled<[(&'static str, &'static str); 1], Gauge>,
    moves: Counters<MoveResult>,
    misplaced: Labelled<[(&'static str, StayReason); 1], Gauge>,
    pub leader: Gauge,
    /// How many webhook configurations of other programs choose addresses of Services, too.
    pub other_webhooks: Gauge,
}

impl ServiceMetrics {
    /// Sets the usage of all pools, and how many Services that no pool matches lie in each. Other pools are removed.
    pub fn pools(&self, pools: &[PoolUsage], unmatched: &BTreeMap<String, u64>) {
        let _lock = scrape_lock();
        for family in [&self.usable, &self.used, &self.free] {
            family.clear();
        }
        self.unmatched.clear();
        for PoolUsage { pool, family, usage } in pools {
            let unmatched = unmatched.get(pool).copied().unwrap_or_default();
            self.unmatched.get_or_create(&[("pool", pool.clone())]).set(whole(unmatched));
            let labels = [("pool", pool.clone()), ("family", family.to_string())];
            self.usable.get_or_create(&labels).set(usage.usable as f64);
            self.used.get_or_create(&labels).set(usage.occupied() as f64);
            self.free.get_or_create(&labels).set(usage.free as f64);
        }
    }

    /// Sets how many live replicas use the same settings as this one, including itself, and how many use others.
    pub fn replicas(&self, same: usize, other: usize) {
        let _lock = scrape_lock();
        for (settings, count) in [("same", same), ("other", other)] {
            self.replicas.get_or_create(&[("settings", settings)]).set(whole(count));
        }
    }

    pub fn moved(&self, result: MoveResult) {
        self.moves.get_or_create(&[("result", result)]).inc();
    }

    /// Notes that the reason why a misplaced Service stays changes, from or to none if it is not counted.
    pub fn stays(&self, before: Option<StayReason>, now: Option<StayReason>) {
        let _lock = scrape_lock();
        for (reason, change) in [(before, -1), (now, 1)] {
            if let Some(reason) = reason {
                self.misplaced.get_or_create(&[("reason", reason)]).inc_by(change);
            }
        }
    }

    /// Sets the numbers of misplaced Services to zero.
    pub fn none_stays(&self) {
        let _lock = scrape_lock();
        for &reason in StayReason::ALL {
            self.misplaced.get_or_create(&[("reason", reason)]).set(0);
        }
    }
}

impl Component for ServiceMetrics {
    fn register(&self, registry: &mut Registry) {
        begin_at_zero(&self.moves, "result", MoveResult::ALL);
        self.none_stays();
        self.replicas(1, 0);
        let Self { usable, used, free, unmatched, ledger, replicas, moves, misplaced, leader, other_webhooks } =
            self.clone();
        registry.register("pool_usable_addresses", "Addresses that the pool may hand out, used or not", usable);
        let about = "Addresses of the pool that are in use, including those set by hand in its reserved part";
        registry.register("pool_used_addresses", about, used);
        registry.register("pool_free_addresses", "Addresses that the pool can hand out now", free);
        let about = "Services that have an address of the pool although no pool matches them";
        registry.register("pool_unmatched_services", about, unmatched);
        registry.register("ledger_addresses", "Addresses handed out that the cluster does not show yet", ledger);
        let about = "Live replicas including this one, by whether they use the same settings as this one";
        registry.register("replicas", about, replicas);
        registry.register("moves", "Moves of Services to another address, by result", moves);
        let about = "Services outside of their pool, by whether they are moved or why not";
        registry.register("misplaced_services", about, misplaced);
        registry.register("leader", "Whether this process is the leader", leader);
        let about =
            "Webhook configurations of other programs that also choose addresses of Services, such as that of K2s";
        registry.register("other_webhooks", about, other_webhooks);
    }
}
