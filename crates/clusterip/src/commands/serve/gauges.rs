//! The gauges of the server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use clusterip_cluster::object::blocks_of;
use tokio::sync::watch;

use crate::leader::Leadership;
use crate::leader::contact::{Contact, MAX_SILENCE};
use crate::nodes::pool_blocks;
use crate::pool_use;
use crate::server_metrics::ServerMetrics;
use crate::services::controller::reconcile::Reconciler;
use crate::services::service_metrics::{FamilyFill, PoolFill};
use crate::webhook::admission_metrics::{AdmissionResult, ResourceKind};
use crate::webhook::tls::Certificate;

/// The gauges that are computed for each scrape.
pub(super) struct Gauges {
    pub(super) metrics: Arc<ServerMetrics>,
    pub(super) reconciler: Arc<Reconciler>,
    pub(super) leadership: watch::Receiver<Leadership>,
    pub(super) certificate: Certificate,
    /// When the API server last answered a request for the leader's Lease.
    pub(super) last_contact: watch::Receiver<Contact>,
}

impl Gauges {
    /// The metrics in the OpenMetrics text format, with the gauges as they are now.
    pub(super) fn encode(&self) -> String {
        let evaluator = self.reconciler.evaluator();
        let settings = evaluator.settings();
        let mut used: Vec<_> = evaluator.stores().read_snapshot().addresses().collect();
        let in_flight = evaluator.ledger().reservations();
        used.extend(in_flight.iter().map(|(address, _)| *address));
        used.sort_unstable();
        used.dedup();
        let unmatched =
            if self.leadership.borrow().leads() { self.reconciler.unmatched() } else { BTreeMap::default() };
        let mut pools: Vec<PoolFill> = Vec::new();
        for pool in pool_use::of(&settings.settings, &used) {
            let fill = FamilyFill {
                family: pool.family,
                usable: pool.usable,
                used: pool.occupied,
                free: pool.usable.saturating_sub(pool.used),
            };
            match pools.last_mut().filter(|last| last.pool == pool.name) {
                Some(last) => last.families.push(fill),
                None => {
                    let unmatched = unmatched.get(&pool.name).copied().unwrap_or_default();
                    pools.push(PoolFill { pool: pool.name, families: vec![fill], unmatched });
                }
            }
        }
        let admission = &self.metrics.admission;
        for pool in &pools {
            admission.begin_pool(
                ResourceKind::Service,
                &[AdmissionResult::Allocated, AdmissionResult::Denied],
                &pool.pool,
            );
        }
        self.metrics.services.pools(&pools);
        let blocks = {
            let snapshot = evaluator.stores().read_snapshot();
            pool_blocks::of(&settings.settings, || {
                snapshot.all("v1", "Node").flat_map(|node| blocks_of(&node)).collect()
            })
        };
        for pool in &blocks {
            admission.begin_pool(ResourceKind::Node, &[AdmissionResult::Denied], &pool.pool);
        }
        self.metrics.nodes.blocks(&blocks);
        self.metrics.services.ledger(in_flight.len());
        let leads = self.leadership.borrow().leads();
        self.metrics.services.leader(leads);
        if !leads {
            // Only the leader reports misplaced Services.
            self.metrics.services.misplaced(&[]);
        }
        evaluator.stores().update_metrics();
        let stale = evaluator.stores().stale_since().map(|since| since.elapsed()).unwrap_or_default();
        let silence = self.last_contact.borrow().last.elapsed();
        if silence > MAX_SILENCE.max(stale) {
            self.metrics.cluster.api_server_contact(SystemTime::now() - silence);
        }
        self.metrics.admission.certificate_expiry(self.certificate.not_after());
        self.metrics.encode()
    }
}
